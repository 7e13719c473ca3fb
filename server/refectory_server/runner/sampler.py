"""`Sampler`: the next token of every row of logits.

Owns the order of the filters: temperature, then min_p, top_k, top_p, each on what the one before
left. Knows no requests and no step: a row is logits, parameters, seed and position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from refectory_kernels import reference as ops
from refectory_server.runner.philox import uniforms
from refectory_server.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """How one row's token is chosen."""

    params: SamplingParams
    seed: int
    position: int
    """Index of the token to be chosen in its sequence: the number of tokens before it."""


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    """A token id for each row. Depends on nothing but that row.

    logits: [num_rows, vocab_size], finite. A greedy row takes its largest logit, of equal ones
    that with the smallest id.
    """
    token_ids: list[int] = logits.argmax(dim=1).tolist()
    drawn = [index for index, row in enumerate(rows) if not row.params.is_greedy]
    if drawn:
        chosen = rows if len(drawn) == len(rows) else [rows[index] for index in drawn]
        subset = logits if len(drawn) == len(rows) else logits[drawn]
        for index, token_id in zip(drawn, _draw(subset, chosen), strict=True):
            token_ids[index] = token_id
    return token_ids


def _draw(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    temperature = torch.tensor([row.params.temperature for row in rows], dtype=torch.float64)
    weights = ops.relative_probabilities(logits, temperature)
    vocab_size = weights.shape[1]

    def apply(
        op: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        value: Callable[[SamplingParams], float],
        is_on: Callable[[SamplingParams], bool],
        dtype: torch.dtype,
    ) -> None:
        wanted = [index for index, row in enumerate(rows) if is_on(row.params)]
        if wanted:
            values = torch.tensor([value(rows[index].params) for index in wanted], dtype=dtype)
            weights[wanted] = op(weights[wanted], values)

    apply(ops.apply_min_p, lambda p: p.min_p, lambda p: p.min_p > 0, torch.float64)
    apply(ops.apply_top_k, lambda p: p.top_k, lambda p: 0 < p.top_k < vocab_size, torch.int64)
    apply(ops.apply_top_p, lambda p: p.top_p, lambda p: p.top_p < 1, torch.float64)
    numbers = uniforms([row.seed for row in rows], [row.position for row in rows])
    drawn: list[int] = ops.draw(weights, torch.from_numpy(numbers)).tolist()
    return drawn
