"""`InputBatch`: one step's tensors, made from a `SchedulerOutput` and what requests had before.

Owns the runner's state per request (tokens, block table, computed count). Knows no model and no
sampling rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from refectory_kernels.attention_metadata import AttentionMetadata, build_attention_metadata
from refectory_server.core.scheduler_output import SchedulerOutput
from refectory_server.runner.interface import RunnerFacts
from refectory_server.runner.logit_adjustments import LogitAdjustments
from refectory_server.sampling_params import SamplingParams


@dataclass(slots=True)
class RunnerRequest:
    """What the runner remembers of a request between steps."""

    request_id: str
    token_ids: list[int]
    sampling_params: SamplingParams
    seed: int
    block_table: torch.Tensor
    """[num_blocks of the request], int64."""
    num_computed_tokens: int
    adjustments: LogitAdjustments | None
    """None where the request takes the model's logits as they are."""

    def append_output_token(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        if self.adjustments is not None:
            self.adjustments.add_output_token(token_id)


@dataclass(frozen=True, slots=True)
class InputBatch:
    """A step as tensors. Sequences lie one after another, in the scheduler's order."""

    token_ids: torch.Tensor
    """[num_tokens], int64."""
    positions: torch.Tensor
    """[num_tokens], int64."""
    attention: AttentionMetadata
    sample_rows: torch.Tensor
    """[num_sampled], int64: the last row of every request whose next token is due."""
    sample_requests: tuple[RunnerRequest, ...]
    """Those requests, in the same order."""


class RequestStates:
    """Every request the runner has state for."""

    def __init__(
        self, facts: RunnerFacts, dtype: torch.dtype, windows: tuple[int, ...] = ()
    ) -> None:
        """dtype: that of the KV cache; windows: of the layers' attention, in tokens."""
        self._facts = facts
        self._dtype = dtype
        self._windows = windows
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
                torch.tensor(new.block_ids, dtype=torch.int64),
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
                request.block_table = torch.tensor(cached.block_ids, dtype=torch.int64)

    def build_batch(self, scheduler_output: SchedulerOutput) -> InputBatch:
        """The tensors of a step with at least one token. Advances the computed counts."""
        token_ids: list[int] = []
        positions: list[int] = []
        query_lens: list[int] = []
        context_lens: list[int] = []
        block_tables: list[torch.Tensor] = []
        sample_rows: list[int] = []
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
            token_ids += request.token_ids[start:end]
            positions += range(start, end)
            query_lens.append(num_tokens)
            context_lens.append(end)
            block_tables.append(request.block_table)
            request.num_computed_tokens = end
            if end == len(request.token_ids):
                sample_rows.append(len(token_ids) - 1)
                sample_requests.append(request)
        return InputBatch(
            token_ids=torch.tensor(token_ids),
            positions=torch.tensor(positions),
            attention=build_attention_metadata(
                query_lens,
                context_lens,
                block_tables,
                self._facts.block_size,
                self._dtype,
                self._windows,
            ),
            sample_rows=torch.tensor(sample_rows, dtype=torch.int64),
            sample_requests=tuple(sample_requests),
        )

    def _known(self, request_id: str) -> RunnerRequest:
        request = self._requests.get(request_id)
        if request is None:
            raise RuntimeError(f"request {request_id} is scheduled, but was never announced")
        return request
