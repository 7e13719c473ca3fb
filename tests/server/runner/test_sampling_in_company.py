"""A request's tokens are those of its parameters, whatever order and company it comes in."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from refectory_kernels.cpu_level import CpuLevel
from refectory_server.core.request import FinishReason
from refectory_server.engine.messages import choice_id
from refectory_server.runner.interface import ModelRunner
from refectory_server.runner.philox import uniforms
from refectory_server.runner.simulated_model_runner import SimulatedModelRunner
from refectory_server.sampling_params import SamplingParams
from refectory_server.testing.drawn_requests import (
    Answer,
    Case,
    answers_alone,
    choices,
    draw_cases,
    run_together,
)
from refectory_server.testing.plain_sampler import near_choices, plain_adjust, plain_choice
from refectory_server.testing.simulated_engine import ALPHABET, FACTS
from refectory_server.testing.stepped_engine import SteppedEngine
from refectory_server.testing.tiny_llama import TinyPair

SEED = 20_250_301
NUM_REQUESTS = 40
EOS = 2
POISONED = 130
"""A token of no healthy prompt, and forbidden to all outputs."""


@pytest.fixture(scope="module")
def runner(tiny_pair: TinyPair, level: CpuLevel | None) -> ModelRunner:
    return tiny_pair.load(level)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    print(f"cases drawn from seed {SEED}")
    drawn = draw_cases(random.Random(SEED), NUM_REQUESTS, vocab_size=POISONED)
    return [
        Case(
            case.prompt,
            dataclasses.replace(case.params, logit_bias={**case.params.logit_bias, POISONED: -100}),
        )
        for case in drawn
    ]


@pytest.fixture(scope="module")
def alone(runner: ModelRunner, cases: list[Case]) -> list[list[Answer]]:
    """Every choice of every case as a request of its own, with nobody beside it."""
    return answers_alone(runner, cases)


def assert_plausible(
    pair: TinyPair, case: Case, found: Sequence[int], wanted: Sequence[int]
) -> None:
    """Ids equal, or differ first where rounding errors decide: there both are possible."""
    for index, (token_id, expected) in enumerate(zip(found, wanted, strict=False)):
        if token_id != expected:
            adjusted = reference_logits(pair, case, wanted[:index])
            assert case.params.seed is not None
            position = len(case.prompt) + index
            near = near_choices(adjusted, case.params, case.params.seed, position)
            assert {token_id, expected} <= near, (case, index, found, wanted)
            return
    assert len(found) == len(wanted)


def reference_logits(pair: TinyPair, case: Case, output: Sequence[int]) -> list[float]:
    """transformers' logits after some output, adjusted by the plain rules."""
    logits = pair.logits([*case.prompt, *output])[-1].tolist()
    return plain_adjust(logits, case.params, case.prompt, list(output), (EOS,))


def test_one_request_runs_follow_transformers_and_the_plain_rules(
    tiny_pair: TinyPair, cases: list[Case], alone: list[list[Answer]]
) -> None:
    answers = list(itertools.chain.from_iterable(alone))
    num_tokens = num_near = 0
    for case, answer in zip(choices(cases), answers, strict=True):
        assert case.params.seed is not None
        logits = tiny_pair.logits([*case.prompt, *answer.token_ids])[len(case.prompt) - 1 :]
        for index, token_id in enumerate(answer.token_ids):
            output = answer.token_ids[:index]
            adjusted = plain_adjust(
                logits[index].tolist(), case.params, case.prompt, output, (EOS,)
            )
            position = len(case.prompt) + index
            num_tokens += 1
            if token_id != plain_choice(adjusted, case.params, case.params.seed, position):
                num_near += 1
                assert token_id in near_choices(adjusted, case.params, case.params.seed, position)
        if case.params.logprobs is not None:
            logprobs = logits[:-1].double().log_softmax(dim=1)
            rows = range(len(answer.token_ids))
            expected = logprobs[rows, answer.token_ids].tolist()
            assert [entry.logprob for entry in answer.logprobs] == pytest.approx(expected, abs=1e-4)
            assert {len(entry.top) for entry in answer.logprobs} == {case.params.logprobs}
    # The rule for close calls is the exception it is meant to be.
    assert num_tokens > 400
    assert num_near < 5
    assert len({tuple(answer.token_ids) for answer in answers}) > len(answers) // 2
    assert {answer.finish_reason for answer in answers} == {FinishReason.STOP, FinishReason.LENGTH}


@pytest.mark.parametrize(
    ("chunk", "num_blocks"), [(2048, None), (16, None), (64, 24)], ids=["wide", "chunks", "tight"]
)
@pytest.mark.parametrize("order", [1, 2])
def test_forty_requests_in_any_order_and_company(
    runner: ModelRunner,
    tiny_pair: TinyPair,
    level: CpuLevel | None,
    cases: list[Case],
    alone: list[list[Answer]],
    chunk: int,
    num_blocks: int | None,
    order: int,
) -> None:
    rng = random.Random(order)
    shuffled = rng.sample(range(len(cases)), len(cases))
    arrivals = sorted(rng.randrange(30) for _ in cases)
    engine = SteppedEngine(runner, chunk=chunk, num_blocks=num_blocks)

    together = run_together(engine, [cases[i] for i in shuffled], arrivals)

    assert (engine.scheduler.stats().num_preemptions > 0) == (num_blocks is not None)
    if level is not None:
        assert together == [alone[i] for i in shuffled]
        return
    for i, answers in zip(shuffled, together, strict=True):
        for index, (answer, expected) in enumerate(zip(answers, alone[i], strict=True)):
            case = cases[i].choice(index)
            assert_plausible(tiny_pair, case, answer.token_ids, expected.token_ids)
            if answer.token_ids == expected.token_ids:
                assert answer.finish_reason is expected.finish_reason
                found = [entry.logprob for entry in answer.logprobs]
                wanted = [entry.logprob for entry in expected.logprobs]
                assert found == pytest.approx(wanted, abs=1e-4)


def test_the_simulated_engines_requests_too() -> None:
    facts = dataclasses.replace(FACTS, num_blocks=16, block_size=8)
    cases = draw_cases(random.Random(SEED), 16, vocab_size=POISONED)
    simulated = SimulatedModelRunner(facts, ALPHABET)
    expected = answers_alone(simulated, cases)
    rng = random.Random(3)
    shuffled = rng.sample(range(len(cases)), len(cases))
    engine = SteppedEngine(simulated, chunk=32)
    arrivals = sorted(rng.randrange(10) for _ in cases)
    together = run_together(engine, [cases[i] for i in shuffled], arrivals)

    assert together == [expected[i] for i in shuffled]
    assert engine.scheduler.stats().num_preemptions > 0


def test_faults_of_some_requests_change_no_token_of_the_others(
    tiny_pair: TinyPair,
    level: CpuLevel | None,
    cases: list[Case],
    alone: list[list[Answer]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """NaN logits of one request, and an exception in torch's sampler for another."""
    runner = tiny_pair.with_nan_token(tmp_path, POISONED).load(level)
    bad_seed = 77

    def faulty_uniforms(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
        if bad_seed in seeds:
            raise ArithmeticError("out of numbers")
        return uniforms(seeds, positions)

    monkeypatch.setattr("refectory_server.runner.sampler.uniforms", faulty_uniforms)
    healthy = cases[:12]
    nan = Case([5, POISONED, 6], SamplingParams(seed=1, max_tokens=9))
    raising = Case([5, 6], SamplingParams(seed=bad_seed, max_tokens=9, presence_penalty=1))
    mixed = [*healthy[:5], nan, *healthy[5:9], raising, *healthy[9:]]
    messages = [case.message(f"mixed-{i}") for i, case in enumerate(mixed)]
    news = SteppedEngine(runner, chunk=40).run(messages)

    (nan_output,) = news["mixed-5"]
    assert nan_output.finish_reason is FinishReason.ERROR
    assert nan_output.message == "the model's logits after token 3 are NaN or infinite"
    if level is None:
        (raising_output,) = news["mixed-10"]
        assert raising_output.finish_reason is FinishReason.ERROR
        assert raising_output.message == "sampling failed: ArithmeticError: out of numbers"
    good = [m for m, case in zip(messages, mixed, strict=True) if case not in (nan, raising)]
    for message, case, expected in zip(good, healthy, alone[:12], strict=True):
        for index, answer in enumerate(expected):
            found = Answer.of(news[choice_id(message.request_id, index)])
            if level is not None:
                assert found == answer
            else:
                assert_plausible(tiny_pair, case.choice(index), found.token_ids, answer.token_ids)
