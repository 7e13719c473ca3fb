"""`NativeModelRunner`: executes steps in the native CPU library, one call each.

Owns the order within a step: copies, then forward pass and sampling at once. Knows neither
queues nor text; of blocks it knows the ids it is given.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from refectory_kernels.cpu_abi import SampleStatus
from refectory_kernels.cpu_decoder import CpuDecoder, Step
from refectory_kernels.cpu_sampling import SampledToken, SamplingRow, SamplingRows
from refectory_server.core.scheduler_output import (
    BlockCopy,
    ModelRunnerOutput,
    SchedulerOutput,
    TokenLogprobs,
)
from refectory_server.runner.input_batch import InputBatch, RequestStates, RunnerRequest
from refectory_server.runner.interface import RunnerFacts
from refectory_server.runner.row_faults import NOTHING_LEFT, OUT_OF_MEMORY, logits_not_finite

logger = logging.getLogger(__name__)

_NO_IDS = np.empty(0, np.int32)
_NO_VALUES = np.empty(0, np.float64)


class NativeModelRunner:
    """A `ModelRunner` (see `interface`)."""

    def __init__(self, decoder: CpuDecoder, facts: RunnerFacts) -> None:
        self._decoder = decoder
        self._facts = facts
        self._states = RequestStates(facts)

    @property
    def facts(self) -> RunnerFacts:
        return self._facts

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """See `ModelRunner`. A row whose logits are NaN or infinite fails alone."""
        self._states.update(scheduler_output)
        self._copy_blocks(scheduler_output.block_copies)
        if not scheduler_output.num_scheduled_tokens:
            return ModelRunnerOutput()
        batch = self._states.build_batch(scheduler_output)
        rows = SamplingRows(
            [sampling_row(request) for request in batch.sample_requests], self._facts.vocab_size
        )
        self._decoder.step(native_step(batch), rows)
        return take_tokens(batch.sample_requests, rows.results())

    def _copy_blocks(self, copies: tuple[BlockCopy, ...]) -> None:
        if copies:
            self._decoder.copy_blocks(
                np.array([copy.source_id for copy in copies], np.int32),
                np.array([copy.target_id for copy in copies], np.int32),
            )


def native_step(batch: InputBatch) -> Step:
    widest = max(len(table) for table in batch.block_tables)
    block_tables = np.zeros((len(batch.block_tables), widest), np.int32)
    for row, table in zip(block_tables, batch.block_tables, strict=True):
        row[: len(table)] = table
    return Step(
        token_ids=batch.token_ids,
        query_starts=batch.query_starts,
        context_lens=batch.context_lens,
        block_tables=block_tables,
        sampled=batch.sampled,
    )


def sampling_row(request: RunnerRequest) -> SamplingRow:
    """How the request's next token is chosen."""
    params, adjustments = request.sampling_params, request.adjustments
    count_ids, counts = (_NO_IDS, _NO_VALUES) if adjustments is None else adjustments.counts
    return SamplingRow(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=max(params.top_k, 0),
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        seed=request.seed,
        position=len(request.token_ids),
        allowed_ids=_NO_IDS if adjustments is None else adjustments.allowed_ids,
        forbidden_ids=_NO_IDS if adjustments is None else adjustments.forbidden_ids,
        bias_ids=_NO_IDS if adjustments is None else adjustments.bias_ids,
        biases=_NO_VALUES if adjustments is None else adjustments.biases,
        count_ids=count_ids,
        counts=counts,
        num_logprobs=params.logprobs,
    )


def take_tokens(
    requests: Sequence[RunnerRequest], sampled: Sequence[SampledToken]
) -> ModelRunnerOutput:
    """Each request's token, appended to it, or an error."""
    output = ModelRunnerOutput()
    for request, token in zip(requests, sampled, strict=True):
        request_id = request.request_id
        match token.status:
            case SampleStatus.LOGITS_NOT_FINITE:
                output.errors[request_id] = logits_not_finite(request)
            case SampleStatus.NOTHING_LEFT:
                output.errors[request_id] = NOTHING_LEFT
            case SampleStatus.OUT_OF_MEMORY:
                output.errors[request_id] = OUT_OF_MEMORY
            case SampleStatus.SAMPLED:
                output.sampled_token_ids[request_id] = token.token_id
                request.append_output_token(token.token_id)
                if token.logprobs is not None:
                    found = token.logprobs
                    output.logprobs[request_id] = TokenLogprobs(
                        found.logprob, found.rank, found.top
                    )
    return output
