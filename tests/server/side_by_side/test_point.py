"""Amounts of work and their prompts, the same for every engine."""

from __future__ import annotations

import pytest

from side_by_side.point import TOKEN_IDS, Point, parse_point


def test_a_point_reads_as_it_is_written() -> None:
    point = parse_point("64x512/128")
    assert point == Point(64, 512, 128)
    assert str(point) == "64x512/128"
    assert (point.num_output_tokens, point.max_len) == (8192, 640)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("32", "a point is '32'; allowed is PROMPTSxINPUT/OUTPUT, as in 32x128/128"),
        ("1x0/1", "input_len is 0; allowed is 1 or more"),
    ],
)
def test_what_is_no_point_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_point(text)


def test_prompts_are_the_same_every_time_and_begin_alike_at_every_size() -> None:
    prompts = Point(3, 4, 1).prompts()
    assert prompts == Point(3, 4, 9).prompts()
    assert [len(prompt) for prompt in prompts] == [4, 4, 4]
    assert prompts[0] == [26_247, 28_562, 3_653, 17_968]
    assert all(token_id in TOKEN_IDS for prompt in prompts for token_id in prompt)
