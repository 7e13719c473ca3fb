"""How long a step of a runner shall take: chosen at its start, by how long decoding takes there.

A chunk of a prompt shares a step with those who decode, and each of them waits until it is
computed. Measured in steps through block 0, which nobody holds yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from refectory_server.core.scheduler_output import NewRequestData, SchedulerOutput
from refectory_server.runner.interface import ModelRunner
from refectory_server.sampling_params import SamplingParams

NUM_DECODING = 32
DECODE_STEPS = 2.5
"""What a step with a chunk shall take, in steps of `NUM_DECODING` requests that decode."""
MIN_STEP_S = 0.05
"""Shorter ones would be noticed by nobody, and prompts would take longer."""
MAX_STEP_S = 0.15
"""The most that a stream of text may stop; slow machines fall back on the least chunk."""
MAX_NUM_MEASURED = 5
MEASURE_S = 0.25
"""No further step once so much time is spent."""


def choose_step_s(decode_s: float) -> float:
    """Seconds that a step shall take where `NUM_DECODING` requests decode in `decode_s`."""
    return min(max(DECODE_STEPS * decode_s, MIN_STEP_S), MAX_STEP_S)


def measure_decode_s(
    runner: ModelRunner, num_requests: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds of a step in which so many requests decode: the best of a few, others may compute."""
    ids = tuple(f"decoding-{i}" for i in range(num_requests))
    params = SamplingParams(temperature=0.0)
    requests = tuple(NewRequestData(i, (0,), 1, params, 0, (0,), 0) for i in ids)
    begun, best = clock(), float("inf")
    dropped: tuple[str, ...] = ()
    for _ in range(MAX_NUM_MEASURED):
        started = clock()
        runner.execute_model(
            SchedulerOutput(
                new_requests=requests,
                num_scheduled_tokens=dict.fromkeys(ids, 1),
                dropped_request_ids=dropped,
            )
        )
        ended, dropped = clock(), ids
        best = min(best, ended - started)
        if ended - begun > MEASURE_S:
            break
    runner.execute_model(SchedulerOutput(dropped_request_ids=ids))
    return best
