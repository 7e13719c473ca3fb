"""The simulated runner: a request's tokens are its own, steps take what the cost model says."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from refectory_server.core.scheduler_output import (
    CachedRequestData,
    NewRequestData,
    SchedulerOutput,
    TokenLogprobs,
)
from refectory_server.runner.simulated_model_runner import (
    SimulatedModelRunner,
    StepClock,
    simulated_num_tokens,
    simulated_token,
)
from refectory_server.sampling_params import SamplingParams
from refectory_server.simulation_profile import StepCost
from refectory_server.testing.simulated_engine import ALPHABET, FACTS

EOS = 256
FACTS_WITH_END = dataclasses.replace(FACTS, eos_token_ids=(EOS,))


def new(
    request_id: str, prompt: bytes, output: bytes = b"", params: SamplingParams | None = None
) -> NewRequestData:
    return NewRequestData(
        request_id,
        tuple(prompt + output),
        len(prompt),
        params or SamplingParams(),
        seed=5,
        block_ids=(0,),
        num_computed_tokens=0,
    )


def test_a_token_is_a_fixed_function_of_prompt_seed_and_position() -> None:
    text = bytes(simulated_token(b"hello", p, ALPHABET) for p in range(5, 25))
    assert text == b"pbzjjpmqqatmwgtsbi o"
    other_seed = bytes(simulated_token(b"hello", p, ALPHABET, seed=7) for p in range(5, 25))
    assert other_seed != text


def test_a_prompt_in_chunks_gives_its_token_only_with_the_last_one() -> None:
    runner = SimulatedModelRunner(FACTS, ALPHABET)
    first = SchedulerOutput(new_requests=(new("a", b"hello"),), num_scheduled_tokens={"a": 3})
    assert runner.execute_model(first).sampled_token_ids == {}
    second = SchedulerOutput(
        cached_requests=(CachedRequestData("a", None, 3),), num_scheduled_tokens={"a": 2}
    )
    expected = simulated_token(b"hello", 5, ALPHABET)
    assert runner.execute_model(second).sampled_token_ids == {"a": expected}


def test_back_from_a_preemption_a_request_goes_on_with_the_same_tokens() -> None:
    expected = bytes(simulated_token(b"hello", p, ALPHABET) for p in (5, 6, 7))
    runner = SimulatedModelRunner(FACTS, ALPHABET)
    step = SchedulerOutput(
        new_requests=(new("a", b"hello", expected[:2]),), num_scheduled_tokens={"a": 7}
    )
    assert runner.execute_model(step).sampled_token_ids == {"a": expected[2]}


def test_dropped_requests_are_forgotten() -> None:
    runner = SimulatedModelRunner(FACTS, ALPHABET)
    runner.execute_model(
        SchedulerOutput(new_requests=(new("a", b"x"),), num_scheduled_tokens={"a": 1})
    )
    assert runner.num_states == 1
    runner.execute_model(SchedulerOutput(dropped_request_ids=("a",)))
    assert runner.num_states == 0


def test_answers_end_by_themselves_after_the_mean_on_average() -> None:
    rng = random.Random(1)
    counts = [simulated_num_tokens(rng.randbytes(40), 50) for _ in range(2000)]
    assert 45 < sum(counts) / len(counts) < 55
    assert min(counts) < 5
    assert max(counts) > 200


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_the_end_comes_where_the_function_says_unless_it_is_ignored(ignore_eos: bool) -> None:
    count = simulated_num_tokens(b"hello", 8)
    runner = SimulatedModelRunner(FACTS_WITH_END, ALPHABET, mean_output_tokens=8)
    output = bytes(simulated_token(b"hello", 5 + i, ALPHABET) for i in range(count - 1))
    params = SamplingParams(ignore_eos=ignore_eos)
    step = SchedulerOutput(
        new_requests=(new("a", b"hello", output, params),),
        num_scheduled_tokens={"a": 5 + count - 1},
    )
    last = simulated_token(b"hello", 5 + count - 1, ALPHABET) if ignore_eos else EOS
    assert runner.execute_model(step).sampled_token_ids == {"a": last}


def test_a_steps_seconds_are_the_sum_of_the_four_costs() -> None:
    clock = StepClock(
        StepCost(fixed=1.0, per_prefill_token=0.1, per_sequence=0.01, per_context_token=0.001)
    )
    step = SchedulerOutput(
        new_requests=(new("a", b"x" * 20), new("b", b"y" * 30)),
        num_scheduled_tokens={"a": 20, "b": 10},
    )
    assert clock(step) == pytest.approx(1.0 + 3.0 + 0.02 + 0.030)
    # "a" decodes with 21 tokens of context, "b" computes the rest of its prompt.
    assert clock(SchedulerOutput(num_scheduled_tokens={"a": 1, "b": 20})) == pytest.approx(
        1.0 + 2.0 + 0.02 + 0.051
    )
    dropped = SchedulerOutput(num_scheduled_tokens={"b": 1}, dropped_request_ids=("a",))
    assert clock(dropped) == pytest.approx(1.0 + 0.01 + 0.031)


def test_the_runner_waits_the_seconds_out() -> None:
    slept: list[float] = []
    runner = SimulatedModelRunner(
        FACTS, ALPHABET, step_seconds=StepClock(StepCost(fixed=0.25)), sleep=slept.append
    )
    runner.execute_model(
        SchedulerOutput(new_requests=(new("a", b"x"),), num_scheduled_tokens={"a": 1})
    )
    assert slept == [0.25]


def run(runner: SimulatedModelRunner, request: NewRequestData, num_tokens: int) -> list[int]:
    """The first tokens of a request that is alone, announced anew in every step."""
    token_ids = list(request.token_ids)
    for _ in range(num_tokens):
        announced = dataclasses.replace(request, token_ids=tuple(token_ids))
        output = runner.execute_model(
            SchedulerOutput(
                new_requests=(announced,),
                num_scheduled_tokens={request.request_id: len(token_ids)},
            )
        )
        token_ids.append(output.sampled_token_ids[request.request_id])
    return token_ids[len(request.token_ids) :]


def test_an_answer_ends_by_itself_only_after_its_least_number_of_tokens() -> None:
    runner = SimulatedModelRunner(FACTS_WITH_END, ALPHABET, mean_output_tokens=3)
    natural = simulated_num_tokens(b"hello", 3)
    longer = natural + 5
    free = run(runner, new("a", b"hello"), natural)
    held = run(runner, new("b", b"hello", params=SamplingParams(min_tokens=longer)), longer)
    assert free[-1] == EOS
    assert EOS not in held
    assert held[: natural - 1] == free[:-1]


def test_logprobs_are_those_of_equally_probable_letters() -> None:
    runner = SimulatedModelRunner(FACTS, ALPHABET)
    output = runner.execute_model(
        SchedulerOutput(
            new_requests=(
                new("a", b"hello", params=SamplingParams(logprobs=3)),
                new("b", b"hello", params=SamplingParams(logprobs=0)),
                new("c", b"hello"),
            ),
            num_scheduled_tokens={"a": 5, "b": 5, "c": 5},
        )
    )
    logprob = -math.log(27)
    first = output.sampled_token_ids["a"]
    assert first == ord("p")
    assert output.logprobs == {
        "a": TokenLogprobs(logprob, 1, tuple((i, logprob) for i in (first, *b"ab"))),
        "b": TokenLogprobs(logprob, 1, ()),
    }
