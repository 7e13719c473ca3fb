"""The step time a runner aims at: exact values for what was measured, and how it is measured."""

from __future__ import annotations

import pytest

from refectory_server.core.scheduler_output import SchedulerOutput
from refectory_server.runner.simulated_model_runner import SimulatedModelRunner
from refectory_server.runner.step_time import (
    MAX_NUM_MEASURED,
    choose_step_s,
    measure_decode_s,
)
from refectory_server.testing.simulated_engine import ALPHABET, FACTS


@pytest.mark.parametrize(
    ("decode_s", "step_s"),
    [
        (0.040, 0.1),
        (0.024, 0.06),
        (0.060, 0.15),
        (0.001, 0.05),  # a fast machine: chunks are worth 50 ms
        (0.9, 0.15),  # a large model, or a machine that was busy all the while
        (0.0, 0.05),
    ],
)
def test_a_step_takes_so_many_times_as_long_as_decoding_within_bounds(
    decode_s: float, step_s: float
) -> None:
    assert choose_step_s(decode_s) == pytest.approx(step_s)


def measured(seconds: list[float], num_requests: int = 32) -> tuple[float, list[int], int]:
    """What is measured where steps take these times, each step's rows, and states left over."""
    times, rows, now = iter(seconds), [], 0.0

    def step_seconds(output: SchedulerOutput) -> float:
        if not output.num_scheduled_tokens:
            return 0.0
        rows.append(sum(output.num_scheduled_tokens.values()))
        return next(times)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    runner = SimulatedModelRunner(FACTS, ALPHABET, step_seconds=step_seconds, sleep=sleep)
    return measure_decode_s(runner, num_requests, lambda: now), rows, runner.num_states


def test_the_best_step_counts_and_nothing_is_left_over() -> None:
    decode_s, rows, num_states = measured([0.0625, 0.03125, 0.046875, 0.0625, 0.015625])
    assert decode_s == 0.015625
    assert rows == [32] * MAX_NUM_MEASURED
    assert num_states == 0


def test_a_large_model_is_not_measured_for_long() -> None:
    assert measured([0.125, 0.25, 9.0], num_requests=4) == (0.125, [4, 4], 0)
    assert measured([2.0, 9.0], num_requests=1) == (2.0, [1], 0)
