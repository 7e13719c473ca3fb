"""The order of measurements."""

from __future__ import annotations

from side_by_side.point import Point
from side_by_side.rounds import Turn, turns

ENGINES = ["a", "b", "c"]
POINTS = [Point(8, 128, 128), Point(1, 128, 128)]


def test_every_engine_has_every_point_once_in_every_round() -> None:
    order = turns(ENGINES, POINTS, num_rounds=3, seed=0)
    blocks = [order[i : i + 3] for i in range(0, len(order), 3)]
    assert [(block[0].round, block[0].point) for block in blocks] == [
        (number, point) for number in (1, 2, 3) for point in POINTS
    ]
    for block in blocks:
        assert {(turn.round, turn.point) for turn in block} == {(block[0].round, block[0].point)}
        assert sorted(turn.engine for turn in block) == ENGINES


def test_the_order_of_engines_is_the_seeds() -> None:
    def engines(seed: int) -> str:
        return "".join(turn.engine for turn in turns(ENGINES, POINTS[:1], 4, seed))

    assert [engines(0), engines(1)] == ["bcabcabcacab", "acbabcbcaabc"]
    assert turns(["a"], POINTS[:1], 1, 0) == [Turn(1, POINTS[0], "a")]
