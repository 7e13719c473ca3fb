"""The filters' exact candidate sets on hand-made rows, and the inverse CDF."""

from __future__ import annotations

import pytest
import torch

from refectory_kernels.reference import (
    apply_min_p,
    apply_top_k,
    apply_top_p,
    draw,
    relative_probabilities,
)


def candidates(weights: torch.Tensor) -> list[list[int]]:
    return [row.nonzero().flatten().tolist() for row in weights]


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_relative_probabilities() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [-4.0, -8.0, -4.0]])

    weights = relative_probabilities(logits, double(1.0, 2.0))

    expected = torch.stack((double(-2, 0, -1).exp(), double(0, -2, 0).exp()))
    assert torch.equal(weights, expected)


def test_tiny_temperature_keeps_the_best_token_only() -> None:
    logits = torch.tensor([[100.0, -1e4, 100.5]])

    assert relative_probabilities(logits, double(1e-6)).tolist() == [[0.0, 0.0, 1.0]]


def test_min_p_keeps_the_border() -> None:
    weights = torch.stack((double(1.0, 0.5, 0.25), double(0.1, 0.2, 1.0)))

    assert candidates(apply_min_p(weights, double(0.5, 0.15))) == [[0, 1], [1, 2]]


def test_top_k_differs_by_row_and_keeps_ties() -> None:
    weights = torch.stack(
        (double(0.5, 1.0, 0.25, 0.5), double(0.1, 1.0, 0.3, 0.2), double(0.1, 1.0, 0.3, 0.2))
    )

    kept = candidates(apply_top_k(weights, torch.tensor([2, 1, 3])))

    assert kept == [[0, 1, 3], [1], [1, 2, 3]]


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.01, [2]),
        (0.5, [2]),  # reached exactly: the next token is not needed
        (0.51, [0, 2]),
        (0.75, [0, 2]),
        (0.8, [0, 2, 3]),  # of the equal tokens 3 and 4 the smaller id
        (0.99, [0, 2, 3, 4]),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, kept: list[int]) -> None:
    weights = double(0.5, 0.0, 1.0, 0.25, 0.25).unsqueeze(0)

    assert candidates(apply_top_p(weights, double(top_p))) == [kept]


def test_top_p_beyond_the_first_sorted_tokens() -> None:
    """A flat row of 3000 needs more than the first prefix; its neighbour needs one token."""
    flat = torch.ones(3000, dtype=torch.float64)
    peaked = torch.full((3000,), 1e-9, dtype=torch.float64)
    peaked[7] = 1.0
    weights = torch.stack((flat, peaked))

    kept = candidates(apply_top_p(weights, double(0.75, 0.9)))

    assert kept == [list(range(2250)), [7]]


def test_draw_walks_the_ids_in_order() -> None:
    row = double(0.0, 1.0, 0.0, 2.0, 1.0, 0.0)
    numbers = double(0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53)

    token_ids = draw(row.expand(6, 6), numbers)

    assert token_ids.tolist() == [1, 1, 3, 3, 4, 4]
