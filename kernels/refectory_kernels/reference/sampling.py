"""Choosing tokens from logits: filters on relative probabilities, then an inverse CDF.

Everything is float64 and row by row: a row's token never depends on the other rows. "Weights"
are probabilities relative to the row's most probable token, which has 1; a token that a filter
drops has 0. No filter ever drops a row's most probable token.
"""

from __future__ import annotations

import torch

_FIRST_PREFIX = 1024
_PREFIX_GROWTH = 8
"""So many of the most probable tokens are sorted first, and this many times more for the few
rows that do not reach their top_p with them."""


def relative_probabilities(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """exp((logits - max(logits)) / temperature).

    logits: [num_rows, vocab_size], finite or -inf, one of each row finite
    temperature: [num_rows], float64, above 0
    returns weights [num_rows, vocab_size], float64, in memory of their own
    """
    weights = logits.to(torch.float64, copy=True)
    weights -= weights.amax(dim=1, keepdim=True)
    return weights.div_(temperature.unsqueeze(1)).exp_()


def apply_min_p(weights: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Drop tokens less probable than `min_p` times the most probable one.

    weights: [num_rows, vocab_size], changed in place and returned; min_p: [num_rows], float64

    Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM
    Outputs".
    """
    return weights.masked_fill_(weights < min_p.unsqueeze(1), 0.0)


def apply_top_k(weights: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Keep the `top_k` most probable tokens, and those equal to the last of them.

    weights: [num_rows, vocab_size], changed in place and returned
    top_k: [num_rows], int64, 1 to vocab_size
    """
    largest = weights.topk(int(top_k.max()), dim=1).values
    last_kept = largest.gather(1, top_k.unsqueeze(1) - 1)
    return weights.masked_fill_(weights < last_kept, 0.0)


def apply_top_p(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keep the smallest set of most probable tokens that reaches `top_p` of what is left.

    Of equally probable tokens at the border, those with the smallest ids are kept.

    weights: [num_rows, vocab_size], changed in place and returned; top_p: [num_rows], float64

    Holtzman et al. 2019, "The Curious Case of Neural Text Degeneration".
    """
    target = top_p * weights.cumsum(dim=1)[:, -1]
    vocab_size = weights.shape[1]
    num_kept = torch.empty_like(target, dtype=torch.int64)
    last_kept = torch.empty_like(target)
    pending = torch.arange(len(weights), device=weights.device)
    prefix = min(_FIRST_PREFIX, vocab_size)
    while True:
        candidates = weights if len(pending) == len(weights) else weights[pending]
        largest = candidates.topk(prefix, dim=1).values
        reached = largest.cumsum(dim=1)
        # Kept: every token before which the target is not reached yet, the first one always.
        kept = 1 + (reached[:, :-1] < target[pending, None]).sum(dim=1)
        num_kept[pending] = kept
        last_kept[pending] = largest.gather(1, kept.unsqueeze(1) - 1).squeeze(1)
        pending = pending[reached[:, -1] < target[pending]]
        if prefix == vocab_size or len(pending) == 0:
            break
        prefix = min(prefix * _PREFIX_GROWTH, vocab_size)
    is_below = weights < last_kept.unsqueeze(1)
    weights.masked_fill_(is_below, 0.0)
    num_too_many = vocab_size - is_below.sum(dim=1) - num_kept
    for row in num_too_many.nonzero().flatten().tolist():
        at_border = (weights[row] == last_kept[row]).nonzero().flatten()
        weights[row, at_border[-int(num_too_many[row]) :]] = 0.0
    return weights


def draw(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The first token, in id order, at which the running sum of weights exceeds u * total.

    weights: [num_rows, vocab_size], float64, summed in id order
    uniforms: [num_rows], float64 in [0, 1)
    returns token ids [num_rows], int64; never a token of weight 0
    """
    sums = weights.cumsum(dim=1)
    targets = (uniforms * sums[:, -1]).unsqueeze(1)
    return torch.searchsorted(sums, targets, right=True).squeeze(1)
