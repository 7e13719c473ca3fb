"""Requests drawn at random, and what an engine answers to them: alone, and in company.

The tests of "company changes nothing" share it: a request's answer alone is what every other run
of it is compared with.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from refectory_server.core.request import FinishReason
from refectory_server.core.scheduler_output import TokenLogprobs
from refectory_server.engine.messages import AddRequest, EngineOutput, choice_id
from refectory_server.runner.interface import ModelRunner
from refectory_server.sampling_params import SamplingParams
from refectory_server.testing.stepped_engine import SteppedEngine

_numbers = itertools.count()


@dataclass(frozen=True)
class Case:
    """One prompt with its parameters; `params.seed` is given."""

    prompt: list[int]
    params: SamplingParams

    def message(self, request_id: str) -> AddRequest:
        assert self.params.seed is not None
        return AddRequest(request_id, self.prompt, self.params, self.params.seed, 0.0)

    def choice(self, index: int) -> Case:
        """The one-request run that choice `index` must equal."""
        assert self.params.seed is not None
        params = dataclasses.replace(self.params, n=1, seed=self.params.seed + index)
        return Case(self.prompt, params)


@dataclass(frozen=True)
class Answer:
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    finish_reason: FinishReason | None

    @classmethod
    def of(cls, news: Sequence[EngineOutput]) -> Answer:
        assert all(output.message is None for output in news), news[-1]
        return cls(
            [token_id for output in news for token_id in output.new_token_ids],
            [logprobs for output in news for logprobs in output.logprobs],
            news[-1].finish_reason,
        )


def draw_params(rng: random.Random, vocab_size: int) -> SamplingParams:
    def sometimes(value: float, default: float) -> float:
        return value if rng.random() < 0.5 else default

    return SamplingParams(
        n=rng.choice([1, 1, 2, 3]),
        seed=rng.randrange(-(2**63), 2**63 - 8),
        temperature=rng.choice([0.0, 0.5, 1.0, 1.6]),
        top_p=sometimes(0.9, 1.0),
        top_k=rng.choice([0, 0, 5, 40]),
        min_p=sometimes(0.02, 0.0),
        presence_penalty=sometimes(rng.uniform(-2, 2), 0.0),
        frequency_penalty=sometimes(rng.uniform(-2, 2), 0.0),
        repetition_penalty=sometimes(rng.uniform(0.7, 1.6), 1.0),
        logit_bias={
            rng.randrange(vocab_size): rng.uniform(-4, 4) for _ in range(rng.choice([0, 3]))
        },
        allowed_token_ids=tuple(range(0, vocab_size, 3)) if rng.random() < 0.2 else (),
        stop_token_ids=(rng.randrange(3, vocab_size),),
        min_tokens=rng.choice([0, 0, 4]),
        max_tokens=rng.randint(5, 14),
        logprobs=rng.choice([None, None, 0, 3]),
    )


def draw_cases(
    rng: random.Random,
    count: int,
    *,
    vocab_size: int,
    stem_lengths: Sequence[int] = (0, 8, 16, 24),
) -> list[Case]:
    """Prompts, many of which begin alike: 1 to 16 tokens after one of three stems."""
    stems = [[rng.randrange(3, vocab_size) for _ in range(max(stem_lengths))] for _ in range(3)]
    cases = []
    for _ in range(count):
        stem = rng.choice(stems)[: rng.choice(stem_lengths)]
        tail = [rng.randrange(3, vocab_size) for _ in range(rng.randint(1, 16))]
        cases.append(Case(stem + tail, draw_params(rng, vocab_size)))
    return cases


def choices(cases: Sequence[Case]) -> Iterator[Case]:
    """Every choice of every case as a request of its own."""
    return (case.choice(i) for case in cases for i in range(case.params.n))


def run_alone(runner: ModelRunner, case: Case) -> Answer:
    """With nobody beside it, and nothing in the prefix cache."""
    (answers,) = run_together(SteppedEngine(runner), [case])
    (answer,) = answers
    return answer


def run_together(
    engine: SteppedEngine, cases: Sequence[Case], arrival_steps: Sequence[int] | None = None
) -> list[list[Answer]]:
    """The answers to all choices of each case. arrival_steps: see `SteppedEngine.run`."""
    messages = [case.message(f"drawn-{next(_numbers)}") for case in cases]
    news = engine.run(messages, arrival_steps)
    return [
        [Answer.of(news[choice_id(m.request_id, i)]) for i in range(case.params.n)]
        for case, m in zip(cases, messages, strict=True)
    ]


def answers_alone(runner: ModelRunner, cases: Sequence[Case]) -> list[list[Answer]]:
    """Of every choice of each case, one run each."""
    return [[run_alone(runner, case.choice(i)) for i in range(case.params.n)] for case in cases]
