"""`LogitAdjustments`: what one request's parameters add to, and forbid in, the model's logits.

Owns the counts of the request's tokens, kept up token by token, and the order of the steps: masks
and bias first, then penalties; temperature and filters come after all of it. Executors read the
arrays, or `apply` them. Knows no other request and no step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from refectory_server.sampling_params import SamplingParams

_FIRST_CAPACITY = 64

Ids = npt.NDArray[np.int32]
Values = npt.NDArray[np.float64]


class LogitAdjustments:
    """Of one request. Told every output token once it is chosen."""

    def __init__(
        self,
        params: SamplingParams,
        token_ids: Sequence[int],
        num_prompt_tokens: int,
        *,
        eos_token_ids: Iterable[int],
        vocab_size: int,
    ) -> None:
        """`token_ids`: prompt and output so far, all of it after a preemption."""
        self._params = params
        self._num_output_tokens = len(token_ids) - num_prompt_tokens
        ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(eos_token_ids))
        self._end_ids = _ids(token_id for token_id in sorted(ends) if token_id < vocab_size)
        self._bad_words = [
            (tuple(beginning), last)
            for *beginning, last in filter(None, params.bad_words_token_ids)
            if last < vocab_size
        ]
        longest = max((len(beginning) for beginning, _ in self._bad_words), default=0)
        self._last_output = deque(token_ids[num_prompt_tokens:], maxlen=longest)
        self.allowed_ids: Ids = _ids(params.allowed_token_ids)
        """The only tokens that may be chosen; empty: all."""
        self.bias_ids: Ids = _ids(params.logit_bias)
        self.biases: Values = np.array(list(params.logit_bias.values()), np.float64)
        self._counts = TokenCounts(
            token_ids[:num_prompt_tokens] if params.repetition_penalty != 1.0 else (),
            token_ids[num_prompt_tokens:] if params.has_penalties else (),
        )

    @staticmethod
    def for_request(
        params: SamplingParams,
        token_ids: Sequence[int],
        num_prompt_tokens: int,
        *,
        eos_token_ids: Iterable[int],
        vocab_size: int,
    ) -> LogitAdjustments | None:
        """None where the parameters leave every logit as it is."""
        if not (
            params.has_penalties
            or params.logit_bias
            or params.allowed_token_ids
            or params.bad_words_token_ids
            or params.min_tokens
        ):
            return None
        return LogitAdjustments(
            params,
            token_ids,
            num_prompt_tokens,
            eos_token_ids=eos_token_ids,
            vocab_size=vocab_size,
        )

    def add_output_token(self, token_id: int) -> None:
        self._num_output_tokens += 1
        self._last_output.append(token_id)
        if self._params.has_penalties:
            self._counts.add(token_id)

    @property
    def is_due(self) -> bool:
        """Whether `apply` would change anything now."""
        return bool(
            len(self.forbidden_ids)
            or len(self.bias_ids)
            or len(self.allowed_ids)
            or len(self._counts)
        )

    @property
    def forbidden_ids(self) -> Ids:
        """Tokens that may not be chosen now: ends that come too early, ends of bad words."""
        must_go_on = self._num_output_tokens < self._params.min_tokens
        ends = self._end_ids if must_go_on else self._end_ids[:0]
        if not self._bad_words:
            return ends
        output = tuple(self._last_output)
        last_ids = [
            last
            for beginning, last in self._bad_words
            if output[len(output) - len(beginning) :] == beginning
        ]
        return np.concatenate([ends, _ids(last_ids)])

    @property
    def counts(self) -> tuple[Ids, Values]:
        """The tokens that penalties are about, and how often each is in the output."""
        return self._counts.arrays()

    def apply(self, logits: Values) -> None:
        """logits: [vocab_size], the next token's; changed in place.

        A forbidden token gets -inf; so do all where nothing is left.
        """
        if len(self.allowed_ids):
            allowed = logits[self.allowed_ids]
            logits.fill(-np.inf)
            logits[self.allowed_ids] = allowed
        logits[self.forbidden_ids] = -np.inf
        logits[self.bias_ids] += self.biases
        if len(self._counts):
            self._penalise(logits)

    def _penalise(self, logits: Values) -> None:
        params = self._params
        token_ids, counts = self.counts
        values = logits[token_ids]
        if params.repetition_penalty != 1.0:
            factor = params.repetition_penalty
            values = np.where(values > 0, values / factor, values * factor)
        values -= params.frequency_penalty * counts
        values -= params.presence_penalty * (counts > 0)
        logits[token_ids] = values


class TokenCounts:
    """How often each of some tokens occurs. Adding one is O(1); memory is O(distinct tokens)."""

    def __init__(self, uncounted: Iterable[int], counted: Iterable[int]) -> None:
        """The tokens of `uncounted` have a count of 0 unless `counted` says more."""
        counts = dict.fromkeys(uncounted, 0)
        for token_id in counted:
            counts[token_id] = counts.get(token_id, 0) + 1
        self._index_by_id = {token_id: index for index, token_id in enumerate(counts)}
        self._ids = _ids(counts)
        self._counts = np.array(list(counts.values()), np.float64)

    def __len__(self) -> int:
        """Distinct tokens."""
        return len(self._index_by_id)

    def add(self, token_id: int) -> None:
        index = self._index_by_id.get(token_id)
        if index is None:
            index = self._index_by_id[token_id] = len(self)
            if index == len(self._ids):
                num_more = max(index, _FIRST_CAPACITY)
                self._ids = np.pad(self._ids, (0, num_more))
                self._counts = np.pad(self._counts, (0, num_more))
            self._ids[index] = token_id
        self._counts[index] += 1

    def arrays(self) -> tuple[Ids, Values]:
        """(ids, counts), [num_distinct] each, views."""
        return self._ids[: len(self)], self._counts[: len(self)]


def _ids(token_ids: Iterable[int]) -> Ids:
    return np.array(list(token_ids), np.int32)
