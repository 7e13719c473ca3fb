"""An engine whose runner asks for a step time: chunks of the right size, the same tokens."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refectory_server.config import SchedulerConfig
from refectory_server.core.scheduler_output import SchedulerOutput
from refectory_server.engine.engine_core import EngineCore
from refectory_server.engine.messages import AddRequest
from refectory_server.runner.simulated_model_runner import (
    SimulatedModelRunner,
    StepClock,
    simulated_token,
)
from refectory_server.sampling_params import SamplingParams
from refectory_server.simulation_profile import StepCost
from refectory_server.testing.simulated_engine import ALPHABET, FACTS

STEP_FACTS = dataclasses.replace(FACTS, num_blocks=512, max_model_len=8192, step_s=0.1)
COST = StepCost(fixed=0.004, per_prefill_token=0.0008, per_sequence=0.001)


class Engine:
    """An `EngineCore` whose time passes only while its runner computes."""

    def __init__(
        self, step_seconds: Callable[[SchedulerOutput], float], config: SchedulerConfig
    ) -> None:
        self.now = 0.0
        runner = SimulatedModelRunner(
            STEP_FACTS, ALPHABET, step_seconds=step_seconds, sleep=self._pass
        )
        self.core = EngineCore.build(
            runner, config, enable_prefix_caching=True, clock=lambda: self.now
        )
        self.tokens: dict[str, list[int]] = {}

    def _pass(self, seconds: float) -> None:
        self.now += seconds

    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens)
        self.core.handle(AddRequest(request_id, prompt, params, seed=0, arrival_time=self.now))

    def steps(self) -> Iterator[tuple[int, int]]:
        """Tokens computed and budget of each step, until there is no work."""
        while self.core.has_work:
            outputs = self.core.step()
            self.core.check_integrity()
            for output in outputs.outputs:
                self.tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            yield outputs.stats.num_scheduled_tokens, outputs.stats.token_budget


def test_a_long_prompt_beside_streams_keeps_to_the_step_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    engine = Engine(StepClock(COST), SchedulerConfig(max_num_seqs=4000))
    assert caplog.messages == [
        "a step holds as many tokens as take about 0.100 s by the steps before it, at most 4000"
    ]
    for i in range(31):
        engine.add(f"stream{i}", [i], max_tokens=1000)
    steps = engine.steps()
    assert next(steps) == (31, 128)
    assert next(steps) == (31, 128)
    engine.add("long", [99] * 1000, max_tokens=1)
    # 97 of its tokens take 0.036 + 0.0776 s: 112 tokens a step, and less the closer they come.
    assert [next(steps)[0] for _ in range(6)] == [128, 112, 111, 111, 111, 111]


def test_a_number_of_tokens_asked_for_is_kept_however_long_steps_take(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    engine = Engine(StepClock(COST), SchedulerConfig(max_num_batched_tokens=300))
    assert caplog.messages == ["a step holds at most 300 tokens"]
    engine.add("long", [99] * 1000, max_tokens=1)
    assert list(engine.steps()) == [(300, 300), (300, 300), (300, 300), (100, 300)]


@settings(max_examples=30)
@given(
    seconds=st.lists(st.sampled_from((0.0, 1e-6, 0.01, 0.1, 0.3, 60.0)), min_size=1, max_size=8),
    prompts=st.lists(st.integers(1, 700), min_size=1, max_size=5),
    max_num_seqs=st.sampled_from((1, 3, 128)),
)
def test_no_step_time_changes_a_token_or_stops_a_request(
    seconds: list[float], prompts: list[int], max_num_seqs: int
) -> None:
    passing = iter(seconds * 10_000)
    engine = Engine(lambda _: next(passing), SchedulerConfig(max_num_seqs=max_num_seqs))
    for i, length in enumerate(prompts):
        engine.add(str(i), [i] * length, max_tokens=3)
    for num_tokens, budget in engine.steps():
        assert 0 < num_tokens <= budget <= 2048
    assert engine.tokens == {
        str(i): [simulated_token([i] * length, length + k, ALPHABET) for k in range(3)]
        for i, length in enumerate(prompts)
    }
