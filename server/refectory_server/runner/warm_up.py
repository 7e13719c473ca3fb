"""The first step of a runner: executors set themselves up in it, before anybody waits for them."""

from __future__ import annotations

from refectory_server.core.scheduler_output import NewRequestData, SchedulerOutput
from refectory_server.runner.interface import ModelRunner
from refectory_server.sampling_params import SamplingParams

_ID = "warm-up"


def warm_up(runner: ModelRunner) -> None:
    """One tiny step through block 0, which nobody holds yet."""
    request = NewRequestData(_ID, (0,), 1, SamplingParams(temperature=1.0, top_p=0.9), 0, (0,), 0)
    runner.execute_model(SchedulerOutput(new_requests=(request,), num_scheduled_tokens={_ID: 1}))
    runner.execute_model(SchedulerOutput(dropped_request_ids=(_ID,)))
