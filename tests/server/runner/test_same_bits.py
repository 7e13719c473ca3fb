"""64 requests through the whole engine and the native library: company changes no bit of an answer.

Ids, log-probabilities and finish reasons equal those of each request alone; nothing is "near".
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from refectory_kernels.cpu_abi import Element
from refectory_kernels.cpu_level import CpuLevel, available_levels
from refectory_server.runner.interface import ModelRunner
from refectory_server.testing.drawn_requests import (
    Answer,
    Case,
    answers_alone,
    draw_cases,
    run_together,
)
from refectory_server.testing.random_decoder import Parts, make_decoder
from refectory_server.testing.random_runner import load_random_runner
from refectory_server.testing.stepped_engine import SteppedEngine

SEED = 64
NUM_REQUESTS = 64
MODEL = make_decoder(
    SEED,
    Parts(qkv_bias=True, head_norms=True, output_norms=True, windows=(None, 70)),
    element=Element.BFLOAT16,
    hidden_size=40,
    head_dim=24,
    num_blocks=1000,
    num_positions=640,
)


@dataclass(frozen=True)
class Turn:
    cases: list[Case]
    alone: list[list[Answer]]
    """Of every choice of each case, in an engine of its own."""


@pytest.fixture(scope="module", params=CpuLevel)
def runner(request: pytest.FixtureRequest) -> ModelRunner:
    level: CpuLevel = request.param
    if level not in available_levels():
        pytest.skip(f"no native library here, or a processor without {level}")
    return load_random_runner(MODEL, level, num_threads=2)


@pytest.fixture(scope="module")
def turn(runner: ModelRunner) -> Turn:
    cases = draw_cases(
        random.Random(SEED),
        NUM_REQUESTS,
        vocab_size=MODEL.shape.vocab_size,
        stem_lengths=(0, 24, 70, 530),
    )
    return Turn(cases, answers_alone(runner, cases))


def assert_equal(engine: SteppedEngine, turn: Turn, order_seed: int) -> None:
    """All at random times, in random order."""
    rng = random.Random(order_seed)
    order = rng.sample(range(NUM_REQUESTS), NUM_REQUESTS)
    arrivals = sorted(rng.randrange(20) for _ in order)
    together = run_together(engine, [turn.cases[i] for i in order], arrivals)
    assert together == [turn.alone[i] for i in order]


def test_the_requests_are_of_all_kinds(turn: Turn) -> None:
    answers = [answer for answers in turn.alone for answer in answers]
    assert len({tuple(answer.token_ids) for answer in answers}) > 0.8 * len(answers)
    temperatures = [case.params.temperature for case in turn.cases]
    assert min(temperatures.count(value) for value in (0.0, 0.5, 1.0, 1.6)) >= 8
    assert max(len(case.prompt) for case in turn.cases) > 512


@pytest.mark.parametrize("chunk", [50, 2048])
def test_in_any_order_and_chunks_and_from_the_prefix_cache(
    runner: ModelRunner, turn: Turn, chunk: int
) -> None:
    engine = SteppedEngine(runner, chunk=chunk)
    assert_equal(engine, turn, 1)
    num_hits = engine.scheduler.stats().num_prefix_hit_tokens
    assert_equal(engine, turn, 2)
    block_size = runner.facts.block_size
    num_reusable = sum((len(c.prompt) - 1) // block_size * block_size for c in turn.cases)
    assert engine.scheduler.stats().num_prefix_hit_tokens - num_hits >= num_reusable


def test_after_preemptions(runner: ModelRunner, turn: Turn) -> None:
    engine = SteppedEngine(runner, chunk=256, num_blocks=60)
    assert_equal(engine, turn, 3)
    assert engine.scheduler.stats().num_preemptions > 0


def test_in_a_second_turn_cold_or_warm(runner: ModelRunner, turn: Turn) -> None:
    """What one engine decoded in the first turn, the other computes as a prompt."""
    cases = [
        Case([*case.prompt, *answers[0].token_ids, 7], case.params)
        for case, answers in zip(turn.cases, turn.alone, strict=True)
    ]
    cold = Turn(cases, answers_alone(runner, cases))
    warm = SteppedEngine(runner)
    assert_equal(warm, turn, 4)
    assert_equal(warm, cold, 5)
    assert_equal(SteppedEngine(runner), cold, 6)
