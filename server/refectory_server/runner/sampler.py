"""`Sampler`: the next token of every row of logits.

Owns the order of the filters: temperature, then min_p, top_k, top_p, each on what the one before
left; `logit_adjustments` comes before them. Knows no requests and no step: a row is logits,
parameters, seed and position.
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


@dataclass(frozen=True, slots=True)
class BestTokens:
    """The largest logit of every row."""

    token_ids: list[int]
    """Of equal logits the smallest id."""
    are_usable: list[bool]
    """False where the row has a NaN or +inf, or nothing but -inf."""

    def subset(self, rows: Sequence[int]) -> BestTokens:
        return BestTokens(
            [self.token_ids[row] for row in rows], [self.are_usable[row] for row in rows]
        )


def best_tokens(logits: torch.Tensor) -> BestTokens:
    """logits: [num_rows, vocab_size], any values. One pass: a NaN counts as the largest."""
    best = logits.max(dim=1)
    return BestTokens(best.indices.tolist(), best.values.isfinite().tolist())


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow], best: BestTokens) -> list[int]:
    """A token id for each row. Depends on nothing but that row.

    logits: [num_rows, vocab_size], every row usable; best: that of the same rows
    """
    token_ids = list(best.token_ids)
    drawn = [index for index, row in enumerate(rows) if not row.params.is_greedy]
    if drawn:
        is_all = len(drawn) == len(rows)
        subset = logits if is_all else logits[drawn]
        chosen = _draw(subset, [rows[index] for index in drawn])
        for index, token_id in zip(drawn, chosen, strict=True):
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
        values = torch.tensor([value(rows[index].params) for index in wanted], dtype=dtype)
        if len(wanted) == len(rows):
            op(weights, values)
        elif wanted:
            weights[wanted] = op(weights[wanted], values)

    apply(ops.apply_min_p, lambda p: p.min_p, lambda p: p.min_p > 0, torch.float64)
    apply(ops.apply_top_k, lambda p: p.top_k, lambda p: 0 < p.top_k < vocab_size, torch.int64)
    apply(ops.apply_top_p, lambda p: p.top_p, lambda p: p.top_p < 1, torch.float64)
    numbers = uniforms([row.seed for row in rows], [row.position for row in rows])
    drawn: list[int] = ops.draw(weights, torch.from_numpy(numbers)).tolist()
    return drawn
