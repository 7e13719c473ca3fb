"""In which order engines are measured: every point in every round, the engines shuffled in each.

Pure. The engines follow each other within a point, so that a busy minute of the machine meets all.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from side_by_side.point import Point


@dataclass(frozen=True, slots=True)
class Turn:
    """One measurement to be made."""

    round: int
    """From 1."""
    point: Point
    engine: str


def turns(
    engines: Sequence[str], points: Sequence[Point], num_rounds: int, seed: int
) -> list[Turn]:
    """The same for the same seed."""
    shuffled = random.Random(seed)
    return [
        Turn(number, point, engine)
        for number in range(1, num_rounds + 1)
        for point in points
        for engine in shuffled.sample(engines, len(engines))
    ]
