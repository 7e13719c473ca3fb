"""The engine's side of the conversation: load, then answer each point with its times.

Owns how time is taken, so that it is taken alike of every engine: from handing over the prompts to
having all output ids, the load before and nothing else left out. `prefill_s` is the time of the
same prompts with one token asked for. Runs in any engine's environment: the standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from side_by_side.point import Point

WARM_UP_TOKENS = 4
PRESSURE = Path("/proc/pressure/cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an engine is loaded with."""

    model: str
    """Folder or file, in the form that the engine reads."""
    num_threads: int
    max_num_prompts: int
    """Of the points to come; `max_len` too."""
    max_len: int
    """Tokens of a prompt and its output."""
    variant: str
    """What the engine itself knows by this word, such as a precision; may be empty."""

    @property
    def max_num_tokens(self) -> int:
        return self.max_num_prompts * self.max_len


class Engine(Protocol):
    """A loaded engine. Greedy, past the end token, no prefix kept between calls."""

    def generate(
        self, prompts: list[list[int]], num_tokens: int
    ) -> tuple[int, list[list[int]] | None]:
        """All prompts at once: tokens generated in all, and the ids where they can be had."""
        ...


def run_engine(load: Callable[[Settings], Engine], packages: Sequence[str]) -> None:
    """Be an engine's process: settings in argv, points on stdin, one JSON line for each on stdout.

    `packages`: distributions whose versions say what was measured.
    """
    answer = _take_stdout()
    settings = Settings(**json.loads(sys.argv[1]))
    start = time.perf_counter()
    engine = load(settings)
    load_s = time.perf_counter() - start
    answer({"load_s": load_s, "versions": {name: metadata.version(name) for name in packages}})
    warm: set[Point] = set()
    for line in sys.stdin:
        point = Point(**json.loads(line))
        try:
            answer(_measure(engine, point, is_warm=point in warm))
        except Exception as error:
            traceback.print_exc()
            answer({"error": f"{type(error).__name__}: {error}"})
        warm.add(point)


def _measure(engine: Engine, point: Point, *, is_warm: bool) -> dict[str, Any]:
    prompts = point.prompts()
    if not is_warm:
        engine.generate(prompts, min(WARM_UP_TOKENS, point.output_len))
    start = time.perf_counter()
    engine.generate(prompts, 1)
    prefilled = time.perf_counter()
    waited_s = _waited_s()
    num_output_tokens, output_ids = engine.generate(prompts, point.output_len)
    end = time.perf_counter()
    waited_until_s = _waited_s()
    cpu_pressure = None
    if waited_s is not None and waited_until_s is not None:
        cpu_pressure = min(1.0, (waited_until_s - waited_s) / (end - prefilled))
    if num_output_tokens != point.num_output_tokens:
        raise RuntimeError(
            f"{num_output_tokens} tokens were generated where {point} asks for "
            f"{point.num_output_tokens}"
        )
    return {
        "prefill_s": prefilled - start,
        "total_s": end - prefilled,
        "cpu_pressure": cpu_pressure,
        "num_output_tokens": num_output_tokens,
        "output_ids": output_ids,
    }


def _waited_s() -> float | None:
    """Time in which some thread on this machine was runnable and had no core; None without PSI."""
    if not PRESSURE.exists():
        return None
    some = PRESSURE.read_text().splitlines()[0]
    return int(some.rpartition("total=")[2]) / 1e6


def _take_stdout() -> Callable[[dict[str, Any]], None]:
    """Keep the real stdout for answers; what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    return answer
