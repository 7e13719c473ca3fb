"""The next token of every request in a step, each chosen as if it were alone.

Owns the road from the model's logits to tokens appended to their requests, and that a request
that fails on it fails alone. Knows no step and no model.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from refectory_server.core.scheduler_output import ModelRunnerOutput, TokenLogprobs
from refectory_server.runner.input_batch import RunnerRequest
from refectory_server.runner.logprobs import token_logprobs
from refectory_server.runner.row_faults import NOTHING_LEFT, logits_not_finite
from refectory_server.runner.sampler import BestTokens, SamplingRow, best_tokens, sample

logger = logging.getLogger(__name__)


def choose_tokens(logits: torch.Tensor, requests: Sequence[RunnerRequest]) -> ModelRunnerOutput:
    """A token for each request, appended to it, or an error.

    logits: [num_requests, vocab_size], the model's own
    """
    try:
        output = _choose(logits, requests)
    except Exception:
        # The guilty one is found by asking each alone; the others' tokens are the same then.
        logger.exception("sampling failed for a step of %d requests", len(requests))
        output = _choose_one_by_one(logits, requests)
    for request in requests:
        token_id = output.sampled_token_ids.get(request.request_id)
        if token_id is not None:
            request.append_output_token(token_id)
    return output


def _choose_one_by_one(
    logits: torch.Tensor, requests: Sequence[RunnerRequest]
) -> ModelRunnerOutput:
    output = ModelRunnerOutput()
    for index, request in enumerate(requests):
        try:
            alone = _choose(logits[index : index + 1], (request,))
        except Exception as error:
            logger.exception("request %s: sampling failed", request.request_id)
            output.errors[request.request_id] = f"sampling failed: {type(error).__name__}: {error}"
            continue
        output.sampled_token_ids.update(alone.sampled_token_ids)
        output.errors.update(alone.errors)
        output.logprobs.update(alone.logprobs)
    return output


def _choose(logits: torch.Tensor, requests: Sequence[RunnerRequest]) -> ModelRunnerOutput:
    """Changes neither logits nor requests."""
    best = best_tokens(logits)
    plain: list[int] = []
    adjusted: list[int] = []
    errors: dict[str, str] = {}
    for index, (request, is_usable) in enumerate(zip(requests, best.are_usable, strict=True)):
        if not is_usable:
            errors[request.request_id] = logits_not_finite(request)
        elif request.adjustments is not None and request.adjustments.is_due:
            adjusted.append(index)
        else:
            plain.append(index)
    if len(plain) == len(requests):
        token_ids = dict(enumerate(sample(logits, _rows(requests), best)))
    else:
        token_ids = _sample_plain(logits, requests, plain, best)
        token_ids |= _sample_adjusted(logits, requests, adjusted, errors)
    return ModelRunnerOutput(
        {requests[index].request_id: token_id for index, token_id in token_ids.items()},
        errors,
        _logprobs(logits, requests, token_ids),
    )


def _sample_plain(
    logits: torch.Tensor, requests: Sequence[RunnerRequest], indices: list[int], best: BestTokens
) -> dict[int, int]:
    """Row index to token."""
    if not indices:
        return {}
    rows = _rows([requests[index] for index in indices])
    return dict(zip(indices, sample(logits[indices], rows, best.subset(indices)), strict=True))


def _sample_adjusted(
    logits: torch.Tensor,
    requests: Sequence[RunnerRequest],
    indices: list[int],
    errors: dict[str, str],
) -> dict[int, int]:
    """Row index to token; an entry in `errors` where the parameters leave no token."""
    if not indices:
        return {}
    own = logits[indices].double()
    for row, index in zip(own, indices, strict=True):
        adjustments = requests[index].adjustments
        assert adjustments is not None
        adjustments.apply(row.numpy())  # the same memory
    best = best_tokens(own)
    for index, is_usable in zip(indices, best.are_usable, strict=True):
        if not is_usable:
            errors[requests[index].request_id] = NOTHING_LEFT
    left = [position for position, is_usable in enumerate(best.are_usable) if is_usable]
    chosen = _sample_plain(own, [requests[index] for index in indices], left, best)
    return {indices[position]: token_id for position, token_id in chosen.items()}


def _rows(requests: Sequence[RunnerRequest]) -> list[SamplingRow]:
    return [SamplingRow(r.sampling_params, r.seed, len(r.token_ids)) for r in requests]


def _logprobs(
    logits: torch.Tensor, requests: Sequence[RunnerRequest], token_ids: dict[int, int]
) -> dict[str, TokenLogprobs]:
    wanted = [index for index in token_ids if requests[index].sampling_params.logprobs is not None]
    if not wanted:
        return {}
    found = token_logprobs(
        logits[wanted],
        [token_ids[index] for index in wanted],
        [requests[index].sampling_params.logprobs or 0 for index in wanted],
    )
    return {requests[i].request_id: entry for i, entry in zip(wanted, found, strict=True)}
