"""The tokens of a step: exact budgets after given step times, and the bounds whatever they are."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from refectory_server.core.token_budget import (
    FIRST_TOKENS,
    MIN_CHUNK_TOKENS,
    TokenBudget,
)

LIMIT = 2048


@dataclass
class Machine:
    """A step takes a fixed time, and so much for each of its tokens."""

    fixed_s: float
    per_token_s: float

    def full_steps(self, budget: TokenBudget, count: int, num_decoding: int = 0) -> list[int]:
        """The budgets of so many steps, each used up by one long prompt."""
        budgets = []
        for _ in range(count):
            budgets.append(budget.start_step(num_decoding + 1))
            seconds = self.fixed_s + self.per_token_s * budgets[-1]
            budget.observe(budgets[-1], num_decoding + 1, seconds)
        return budgets


def test_a_fixed_budget_stays_whatever_steps_take() -> None:
    budget = TokenBudget(100, None)
    for num_running, seconds in ((0, 9.0), (100, 0.001), (1, 0.0)):
        assert budget.start_step(num_running) == 100
        budget.observe(100, 1, seconds)


def test_the_budget_comes_to_what_a_step_computes_in_its_time() -> None:
    assert Machine(0.0, 0.0005).full_steps(TokenBudget(LIMIT, 0.1), 4) == [128, 200, 200, 200]
    # With 0.05 s of every step for other things, 0.05 s are left for 100 tokens.
    assert Machine(0.05, 0.0005).full_steps(TokenBudget(LIMIT, 0.1), 6) == [
        *(128, 112, 105, 102, 100, 100)
    ]


def test_it_at_most_doubles_or_halves_in_one_step_and_ends_at_its_bounds() -> None:
    fast, slow = Machine(0.0, 1e-6), Machine(0.0, 1.0)
    assert fast.full_steps(TokenBudget(LIMIT, 0.1), 6) == [128, 256, 512, 1024, 2048, 2048]
    assert slow.full_steps(TokenBudget(LIMIT, 0.1), 4) == [128, 64, 33, 33]
    assert slow.full_steps(TokenBudget(20, 0.1), 2) == [20, 20]
    budget = TokenBudget(LIMIT, 0.1)
    budget.start_step(1)
    budget.observe(FIRST_TOKENS, 1, 0.0)
    assert budget.start_step(1) == 2 * FIRST_TOKENS


def test_decoding_leaves_less_for_chunks_and_never_nothing() -> None:
    # 32 that decode and their prompt: 96 tokens take the whole 0.1 s.
    machine = Machine(0.004, 0.001)
    assert machine.full_steps(TokenBudget(LIMIT, 0.1), 4, num_decoding=32) == [128, 96, 96, 96]
    # 127 that decode take longer than that: their tokens, one of the prompt's, and a chunk more.
    budgets = machine.full_steps(TokenBudget(LIMIT, 0.1), 3, num_decoding=127)
    assert budgets == [128 + MIN_CHUNK_TOKENS] * 3


def test_one_slow_step_is_soon_forgotten() -> None:
    machine, budget = Machine(0.0, 0.0005), TokenBudget(LIMIT, 0.1)
    machine.full_steps(budget, 3)
    budget.start_step(1)
    budget.observe(200, 1, 5.0)
    assert machine.full_steps(budget, 3) == [100, 200, 200]


def test_nothing_is_learnt_from_steps_that_the_budget_did_not_bound() -> None:
    budget = TokenBudget(LIMIT, 0.1)
    for num_tokens, num_requests, seconds in (
        (32, 32, 5.0),  # all decode: no chunk to make smaller
        (32, 32, 0.001),
        (127, 1, 0.02),  # short, but for want of work
    ):
        assert budget.start_step(num_requests) == FIRST_TOKENS
        budget.observe(num_tokens, num_requests, seconds)
    assert budget.start_step(1) == FIRST_TOKENS
    budget.observe(100, 1, 0.125)  # too long although there was room: the chunk is deep
    assert budget.start_step(1) == 80


@given(
    limit=st.integers(1, 4096),
    steps=st.lists(
        st.tuples(
            st.integers(0, 300),
            st.floats(0, 1),
            st.one_of(st.floats(0, 1e3), st.sampled_from((0.0, 0.05, 0.1, 0.2))),
        )
    ),
)
def test_the_bounds_hold_after_any_times(limit: int, steps: list[tuple[int, float, float]]) -> None:
    budget = TokenBudget(limit, 0.1)
    for num_running, used, seconds in steps:
        given_tokens = budget.start_step(num_running)
        assert given_tokens == budget.num_tokens <= limit
        assert given_tokens >= min(limit, num_running + MIN_CHUNK_TOKENS)
        num_tokens = max(1, int(given_tokens * used))
        budget.observe(num_tokens, min(num_tokens, num_running + 1), seconds)
