"""Every token equals a plain float64 reading of the rules, whatever else is in the step."""

from __future__ import annotations

import pytest
import torch

from refectory_server.runner import sampler
from refectory_server.runner.philox import uniforms
from refectory_server.runner.sampler import SamplingRow, best_tokens
from refectory_server.sampling_params import SamplingParams
from refectory_server.testing.plain_sampler import plain_choice

GREEDY = SamplingParams(temperature=0.0)
SETTINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=2.0, min_p=0.2),
    SamplingParams(top_k=1),
    SamplingParams(top_k=7),
    SamplingParams(top_k=10**6),
    SamplingParams(top_p=0.05),
    SamplingParams(top_p=0.9),
    SamplingParams(temperature=1.5, top_p=0.999),
    SamplingParams(temperature=0.8, min_p=0.01, top_k=20, top_p=0.7),
]


def sample(logits: torch.Tensor, rows: list[SamplingRow]) -> list[int]:
    return sampler.sample(logits, rows, best_tokens(logits))


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_equals_the_plain_reading(params: SamplingParams) -> None:
    torch.manual_seed(1)
    logits = torch.randn(300, 61) * 3
    logits[::3] = logits[::3].round()  # many equal logits
    rows = [SamplingRow(params, seed, 5 * seed) for seed in range(300)]

    token_ids = sample(logits, rows)

    assert token_ids == [
        plain_choice(row_logits, row.params, row.seed, row.position)
        for row_logits, row in zip(logits.tolist(), rows, strict=True)
    ]
    assert len(set(token_ids)) > 10


def test_greedy_takes_the_first_of_equal_logits() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.5, 0.5, 0.5, 0.5]])

    assert sample(logits, [SamplingRow(GREEDY, 0, 0)] * 2) == [1, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_independent_of_the_others(dtype: torch.dtype) -> None:
    """A vocabulary that fits no vector width; alone, mixed, and in reverse."""
    torch.manual_seed(2)
    logits = (torch.randn(len(SETTINGS) + 1, 5003) * 2).to(dtype)
    rows = [SamplingRow(params, 77 + i, i) for i, params in enumerate([*SETTINGS, GREEDY])]

    together = sample(logits, rows)
    backwards = sample(logits.flip(0), rows[::-1])[::-1]
    alone = [sample(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]

    assert together == backwards == alone


def test_same_seed_and_position_same_token_other_position_other_number() -> None:
    logits = torch.zeros(3, 100_000)
    rows = [SamplingRow(SamplingParams(), 5, position) for position in (9, 9, 10)]

    first, second, third = sample(logits, rows)

    assert first == second == int(uniforms([5], [9])[0] * 100_000)
    assert third != first


def test_rows_without_a_finite_best_logit_are_not_usable() -> None:
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor(
        [[0.0, 1.0, 2.0], [0.0, nan, 2.0], [inf, 0.0, 2.0], [-inf, -inf, -inf], [-inf, 1.0, 0.0]]
    )

    best = best_tokens(logits)

    assert best.are_usable == [True, False, False, False, True]
    assert (best.token_ids[0], best.token_ids[4]) == (2, 1)
