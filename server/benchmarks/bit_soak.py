"""Does anything but a request itself change its answer? Random models and company, for minutes.

    python server/benchmarks/bit_soak.py [--seconds 600] [--seed N]

A round draws from its seed a decoder of any shape (level, element, threads, windows, biases, caps)
and requests of all kinds. Each runs alone; then all run together in random order, arrival, chunks
and pools, down to one so small that they are preempted; again from the prefix cache; and on with a
second turn. Ids, log-probabilities and finish reasons must be equal to the last bit. The first
difference ends the run with exit code 1; its round's seed repeats it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, field

from refectory_kernels.cpu_abi import Element
from refectory_kernels.cpu_level import available_levels
from refectory_server.runner.interface import ModelRunner
from refectory_server.testing import random_runner
from refectory_server.testing.drawn_requests import (
    Answer,
    Case,
    answers_alone,
    draw_cases,
    run_together,
)
from refectory_server.testing.random_decoder import RandomDecoder, draw_decoder
from refectory_server.testing.stepped_engine import SteppedEngine

MAX_REQUESTS = 32
NUM_COMPANIES = 3
STEM_LENGTHS = (0, 0, 16, 50, 70, 130, 530)
"""Tokens that prompts begin with, alike: up to more than a segment of 512 keys."""
NUM_POSITIONS = 640
PROGRESS_S = 10.0


@dataclass(frozen=True, slots=True)
class Turn:
    """Requests, and what each choice of theirs is answered alone."""

    cases: list[Case]
    alone: list[list[Answer]]

    @classmethod
    def of(cls, runner: ModelRunner, cases: list[Case]) -> Turn:
        return cls(cases, answers_alone(runner, cases))

    def following(self, runner: ModelRunner) -> Turn:
        """Each prompt goes on after its first choice's answer."""
        return Turn.of(
            runner,
            [
                Case([*case.prompt, *answers[0].token_ids, 3], case.params)
                for case, answers in zip(self.cases, self.alone, strict=True)
            ],
        )


@dataclass(slots=True)
class Soak:
    """Counts of all rounds so far."""

    num_rounds: int = 0
    num_answers: int = 0
    """In company."""
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    rng: random.Random = field(default_factory=random.Random)
    """Of the round."""

    def __str__(self) -> str:
        return (
            f"{self.num_rounds} rounds, {self.num_answers} answers, "
            f"{self.num_preemptions} preemptions, {self.num_cached_tokens} tokens from the cache"
        )

    def run_round(self, seed: int) -> str | None:
        """What company changed first, and in what; None where it changed nothing."""
        self.rng = rng = random.Random(seed)
        model = draw_decoder(
            rng,
            element=rng.choice([*Element]),
            vocab_size=rng.choice([31, 131, 300]),
            num_blocks=400,
            num_positions=NUM_POSITIONS,
            block_size=rng.choice([16, 16, 32]),
        )
        runner = random_runner.load_random_runner(
            model, rng.choice(available_levels()), num_threads=rng.randint(1, 3)
        )
        cases = draw_cases(
            rng,
            rng.randint(2, MAX_REQUESTS),
            vocab_size=model.shape.vocab_size,
            stem_lengths=rng.sample(STEM_LENGTHS, 3),
        )
        turn = Turn.of(runner, cases)
        next_turn = turn.following(runner)
        for _ in range(NUM_COMPANIES):
            chunk = rng.choice([rng.randint(MAX_REQUESTS, 64), rng.randint(64, 2048)])
            num_blocks = self._draw_num_blocks(model, next_turn)
            engine = SteppedEngine(runner, chunk=chunk, num_blocks=num_blocks)
            for number, asked in enumerate((turn, turn, next_turn), 1):
                difference = self._run_together(engine, asked)
                if difference is not None:
                    return (
                        f"{difference}\n  turn {number}, {chunk} tokens a step, {num_blocks} "
                        f"blocks, {runner.facts.description}\n  {model}"
                    )
            self.num_preemptions += engine.scheduler.stats().num_preemptions
            self.num_cached_tokens += engine.scheduler.stats().num_prefix_hit_tokens
        self.num_rounds += 1
        return None

    def _draw_num_blocks(self, model: RandomDecoder, turn: Turn) -> int:
        """All there are, or hardly more than the longest request needs."""
        longest = max(len(case.prompt) + (case.params.max_tokens or 0) for case in turn.cases)
        num_needed = -(-longest // model.shape.block_size)
        return self.rng.choice([model.shape.num_blocks, num_needed + self.rng.randint(2, 12)])

    def _run_together(self, engine: SteppedEngine, turn: Turn) -> str | None:
        order = self.rng.sample(range(len(turn.cases)), len(turn.cases))
        arrivals = sorted(self.rng.randrange(30) for _ in order)
        found = run_together(engine, [turn.cases[i] for i in order], arrivals)
        for i, answers in zip(order, found, strict=True):
            for index, (answer, expected) in enumerate(zip(answers, turn.alone[i], strict=True)):
                self.num_answers += 1
                if answer != expected:
                    return (
                        f"request {i}, choice {index}:\n  alone    {expected}\n"
                        f"  together {answer}\n  {turn.cases[i]}"
                    )
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=600.0, help="at least one round is run")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, levels: {', '.join(available_levels()) or 'none'}", flush=True)
    if not available_levels():
        sys.exit("there is no native library here, or the processor runs none of its levels")
    soak = Soak()
    started = reported = time.monotonic()
    while soak.num_rounds == 0 or time.monotonic() - started < arguments.seconds:
        seed = arguments.seed + soak.num_rounds
        difference = soak.run_round(seed)
        if difference is not None:
            sys.exit(
                f"{soak}; then round {seed} differs in {difference}\n"
                f'repeat it: make bit-soak ARGS="--seed {seed} --seconds 0"'
            )
        if time.monotonic() - reported >= PROGRESS_S:
            reported = time.monotonic()
            print(f"{reported - started:5.0f} s: {soak}", flush=True)
    print(f"no difference: {soak}")


if __name__ == "__main__":
    main()
