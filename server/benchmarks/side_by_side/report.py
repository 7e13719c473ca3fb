"""`Report`: one run's raw results, as kept in JSON, and the arithmetic on them.

Pure but for reading and writing the file. Ratios are ratios of medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from side_by_side.catalogue import OURS
from side_by_side.machine import Machine
from side_by_side.point import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    name: str
    title: str
    command: str
    versions: dict[str, str] = field(default_factory=dict)
    load_s: float | None = None
    """None where it did not load."""
    problem: str | None = None
    """Why it is absent, or what ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    engine: str
    point: Point
    round: int
    prefill_s: float
    total_s: float
    """Prefill included."""
    cpu_pressure: float | None
    """Share of that time in which some thread on the machine waited for a core, where known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far an engine's greedy ids are ours."""

    engine: str
    point: Point
    num_first_tokens_equal: int
    """Prompts whose first generated token is the same."""
    median_equal_tokens: float
    """Tokens before the first difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    date: str
    commit: str
    command: str
    machine: Machine
    model: str
    num_threads: int
    num_rounds: int
    points: list[Point]
    engines: list[EngineReport]
    measurements: list[Measurement]
    agreements: list[Agreement]

    def tokens_per_s(self, engine: str, point: Point) -> float | None:
        """Generated tokens over the median of the whole time, prefill included."""
        times = [m.total_s for m in self._of(engine, point)]
        return point.num_output_tokens / statistics.median(times) if times else None

    def ratio(self, engine: str, point: Point) -> float | None:
        """Of its `tokens_per_s` to ours: above 1 it is the faster one."""
        its, ours = self.tokens_per_s(engine, point), self.tokens_per_s(OURS, point)
        return None if its is None or ours is None else its / ours

    def prefill_s(self, engine: str, point: Point) -> float | None:
        times = [m.prefill_s for m in self._of(engine, point)]
        return statistics.median(times) if times else None

    def decode_tokens_per_s(self, engine: str, point: Point) -> float | None:
        """Tokens after each prompt's first, over the median of the time after the prefill."""
        times = [m.total_s - m.prefill_s for m in self._of(engine, point)]
        num_tokens = point.num_output_tokens - point.num_prompts
        if not times or num_tokens == 0:
            return None
        return num_tokens / statistics.median(times)

    def spread(self, engine: str, point: Point) -> float | None:
        """The slowest round over the fastest, less 1."""
        times = [m.total_s for m in self._of(engine, point)]
        return max(times) / min(times) - 1 if times else None

    def _of(self, engine: str, point: Point) -> list[Measurement]:
        return [m for m in self.measurements if (m.engine, m.point) == (engine, point)]


def compare(
    engine: str, point: Point, ids: Sequence[Sequence[int]], ours: Sequence[Sequence[int]]
) -> Agreement:
    equal = [_num_equal(its, our) for its, our in zip(ids, ours, strict=True)]
    return Agreement(
        engine=engine,
        point=point,
        num_first_tokens_equal=sum(count > 0 for count in equal),
        median_equal_tokens=statistics.median(equal),
    )


def _num_equal(its: Sequence[int], ours: Sequence[int]) -> int:
    pairs = zip(its, ours, strict=True)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(ours))


def read_report(path: Path) -> Report:
    return msgspec.json.decode(path.read_bytes(), type=Report)


def write_report(report: Report, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
