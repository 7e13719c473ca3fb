"""`LogitAdjustments`: what one request's parameters add to, and forbid in, the model's logits.

Owns the counts of the request's tokens, kept up token by token, and the order of the steps: masks
and bias first, then penalties; temperature and filters come after all of it, in `sampler`. Knows
no other request and no step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from refectory_server.sampling_params import SamplingParams

_FIRST_CAPACITY = 64


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
        self._allowed_ids = _ids(params.allowed_token_ids)
        self._bias_ids = _ids(params.logit_bias)
        self._biases = torch.tensor(list(params.logit_bias.values()), dtype=torch.float64)
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
        if self._params.has_penalties:
            self._counts.add(token_id)

    @property
    def is_due(self) -> bool:
        """Whether `apply` would change anything now."""
        params = self._params
        return (
            self._must_go_on
            or bool(params.logit_bias)
            or bool(params.allowed_token_ids)
            or bool(self._counts)
        )

    def apply(self, logits: torch.Tensor) -> None:
        """logits: [vocab_size], float64, the next token's; changed in place.

        A forbidden token gets -inf; so do all where nothing is left.
        """
        if self._params.allowed_token_ids:
            allowed = logits[self._allowed_ids]
            logits.fill_(-torch.inf)
            logits[self._allowed_ids] = allowed
        if self._must_go_on:
            logits[self._end_ids] = -torch.inf
        if self._params.logit_bias:
            logits[self._bias_ids] += self._biases
        if self._counts:
            self._penalise(logits)

    @property
    def _must_go_on(self) -> bool:
        return self._num_output_tokens < self._params.min_tokens

    def _penalise(self, logits: torch.Tensor) -> None:
        params = self._params
        token_ids, counts = self._counts.tensors()
        values = logits[token_ids]
        if params.repetition_penalty != 1.0:
            factor = params.repetition_penalty
            values = torch.where(values > 0, values / factor, values * factor)
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
        self._counts = torch.tensor(list(counts.values()), dtype=torch.float64)

    def __len__(self) -> int:
        """Distinct tokens."""
        return len(self._index_by_id)

    def add(self, token_id: int) -> None:
        index = self._index_by_id.get(token_id)
        if index is None:
            index = self._index_by_id[token_id] = len(self)
            if index == len(self._ids):
                num_more = max(index, _FIRST_CAPACITY)
                self._ids = torch.cat((self._ids, self._ids.new_zeros(num_more)))
                self._counts = torch.cat((self._counts, self._counts.new_zeros(num_more)))
            self._ids[index] = token_id
        self._counts[index] += 1

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(ids [num_distinct], int64; counts [num_distinct], float64), views."""
        return self._ids[: len(self)], self._counts[: len(self)]


def _ids(token_ids: Iterable[int]) -> torch.Tensor:
    return torch.tensor(list(token_ids), dtype=torch.int64)
