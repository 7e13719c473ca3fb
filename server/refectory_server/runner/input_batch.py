"""`InputBatch`: one step's arrays, made from a `SchedulerOutput` and what requests had before.

Owns the runners' state per request (tokens, block table, computed count). Knows no model, no
executor and no sampling rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from refectory_server.core.scheduler_output import SchedulerOutput
from refectory_server.runner.interface import RunnerFacts
from refectory_server.runner.logit_adjustments import LogitAdjustments
from refectory_server.sampling_params import SamplingParams

Ints = npt.NDArray[np.int32]


@dataclass(slots=True)
class RunnerRequest:
    """What the runner remembers of a request between steps."""

    request_id: str
    token_ids: list[int]
    sampling_params: SamplingParams
    seed: int
    block_table: Ints
    """[num_blocks of the request]"""
    num_computed_tokens: int
    adjustments: LogitAdjustments | None
    """None where the request takes the model's logits as they are."""

    def append_output_token(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        if self.adjustments is not None:
            self.adjustments.add_output_token(token_id)


@dataclass(frozen=True, slots=True)
class InputBatch:
    """A step as arrays. Sequences lie one after another, in the scheduler's order."""

    token_ids: Ints
    """[num_tokens]"""
    query_starts: Ints
    """[num_sequences + 1]: each one's first row among the tokens; the last entry is their number.
    Its rows are the last tokens of its context."""
    context_lens: Ints
    """[num_sequences]: tokens in all, this step's included."""
    block_tables: tuple[Ints, ...]
    """One a sequence."""
    sampled: Ints
    """[num_sampled]: the sequences whose next token is due."""
    sample_requests: tuple[RunnerRequest, ...]
    """Their requests, in the same order."""


class RequestStates:
    """Every request the runner has state for."""

    def __init__(self, facts: RunnerFacts) -> None:
        self._facts = facts
        self._requests: dict[str, RunnerRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def update(self, scheduler_output: SchedulerOutput) -> None:
        """Forget the dropped requests, take in the new ones, refresh the others."""
        for request_id in scheduler_output.dropped_request_ids:
            self._requests.pop(request_id, None)
        for new in scheduler_output.new_requests:
            if new.request_id in self._requests:
                raise RuntimeError(f"request {new.request_id} is announced as new a second time")
            self._requests[new.request_id] = RunnerRequest(
                new.request_id,
                list(new.token_ids),
                new.sampling_params,
                new.seed,
                np.array(new.block_ids, np.int32),
                new.num_computed_tokens,
                LogitAdjustments.for_request(
                    new.sampling_params,
                    new.token_ids,
                    new.num_prompt_tokens,
                    eos_token_ids=self._facts.eos_token_ids,
                    vocab_size=self._facts.vocab_size,
                ),
            )
        for cached in scheduler_output.cached_requests:
            request = self._known(cached.request_id)
            request.num_computed_tokens = cached.num_computed_tokens
            if cached.block_ids is not None:
                request.block_table = np.array(cached.block_ids, np.int32)

    def build_batch(self, scheduler_output: SchedulerOutput) -> InputBatch:
        """The arrays of a step with at least one token. Advances the computed counts."""
        token_ids: list[int] = []
        query_starts: list[int] = [0]
        context_lens: list[int] = []
        block_tables: list[Ints] = []
        sampled: list[int] = []
        sample_requests: list[RunnerRequest] = []
        for request_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
            request = self._known(request_id)
            start = request.num_computed_tokens
            end = start + num_tokens
            if num_tokens < 1 or end > len(request.token_ids):
                raise RuntimeError(
                    f"request {request_id} has {len(request.token_ids)} tokens, {start} of them "
                    f"computed; it cannot compute {num_tokens} more"
                )
            num_slots = len(request.block_table) * self._facts.block_size
            if end > num_slots:
                raise RuntimeError(
                    f"request {request_id} has blocks for {num_slots} tokens, and is to have "
                    f"{end} computed"
                )
            token_ids += request.token_ids[start:end]
            query_starts.append(len(token_ids))
            context_lens.append(end)
            block_tables.append(request.block_table)
            request.num_computed_tokens = end
            if end == len(request.token_ids):
                sampled.append(len(context_lens) - 1)
                sample_requests.append(request)
        return InputBatch(
            token_ids=np.array(token_ids, np.int32),
            query_starts=np.array(query_starts, np.int32),
            context_lens=np.array(context_lens, np.int32),
            block_tables=tuple(block_tables),
            sampled=np.array(sampled, np.int32),
            sample_requests=tuple(sample_requests),
        )

    def _known(self, request_id: str) -> RunnerRequest:
        request = self._requests.get(request_id)
        if request is None:
            raise RuntimeError(f"request {request_id} is scheduled, but was never announced")
        return request
