"""`StopStrings` by example, and against a search of the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refectory_server.tokenizer.stop_strings import StopStrings


def test_text_before_the_match_is_emitted_and_the_rest_dropped() -> None:
    stops = StopStrings(["END"])
    assert stops.append("hello END of it") == ("hello ", "END")
    assert stops.flush() == ""


def test_only_what_could_begin_a_stop_string_is_held_back() -> None:
    stops = StopStrings(["\n\nUser:"])
    assert stops.append("a\n") == ("a", None)
    assert stops.append("\n") == ("", None)
    assert stops.append("\n") == ("\n", None)
    assert stops.append("Us") == ("", None)
    assert stops.append("ually") == ("\n\nUsually", None)


def test_a_failed_match_falls_back_to_its_longest_suffix() -> None:
    stops = StopStrings(["aabaac"])
    assert stops.append("aabaa") == ("", None)
    assert stops.append("b") == ("aab", None)
    assert stops.append("aac!") == ("", "aabaac")


def test_the_match_that_ends_first_wins() -> None:
    assert StopStrings(["abcd", "bc"]).append("xabcd") == ("xa", "bc")


@pytest.mark.parametrize("order", [["bc", "abc", "c"], ["c", "abc", "bc"]])
def test_of_matches_that_end_together_the_longest_wins(order: list[str]) -> None:
    assert StopStrings(order).append("xabcd") == ("x", "abc")


def test_a_stop_string_within_another_is_found() -> None:
    assert StopStrings(["xaby", "ab"]).append("xab") == ("x", "ab")


def test_flush_releases_what_is_held() -> None:
    stops = StopStrings(["stop"])
    assert stops.append("to sto") == ("to ", None)
    assert stops.flush() == "sto"
    assert stops.flush() == ""


def test_without_stop_strings_nothing_is_held() -> None:
    stops = StopStrings([])
    assert stops.append("anything") == ("anything", None)
    assert stops.flush() == ""


def test_text_after_a_match_is_refused() -> None:
    stops = StopStrings(["."])
    stops.append(".")
    with pytest.raises(RuntimeError, match=r"already ended at the stop string '\.'"):
        stops.append("more")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty stop string"):
        StopStrings(["a", ""])


def first_match(text: str, stops: list[str]) -> tuple[int, str] | None:
    """(start, stop) of the match that ends first, the longest of these."""
    for end in range(1, len(text) + 1):
        here = [stop for stop in stops if text[:end].endswith(stop)]
        if here:
            longest = max(here, key=len)
            return end - len(longest), longest
    return None


def longest_open_suffix(text: str, stops: list[str]) -> int:
    return max(
        length
        for length in range(len(text) + 1)
        if any(stop.startswith(text[len(text) - length :]) for stop in stops) or length == 0
    )


@settings(derandomize=True, deadline=None, max_examples=1000)
@given(
    pieces=st.lists(st.text(alphabet="abé", max_size=6), max_size=8),
    stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=5), max_size=5),
)
def test_any_splitting_gives_what_a_search_of_the_whole_gives(
    pieces: list[str], stops: list[str]
) -> None:
    text = "".join(pieces)
    expected = first_match(text, stops)
    automaton = StopStrings(stops)
    emitted, seen, matched = "", "", None
    for piece in pieces:
        new, matched = automaton.append(piece)
        emitted += new
        seen += piece
        if matched is not None:
            break
        assert emitted == seen[: len(seen) - longest_open_suffix(seen, stops)]
    emitted += automaton.flush()
    if expected is None:
        assert (emitted, matched) == (text, None)
    else:
        assert (emitted, matched) == (text[: expected[0]], expected[1])


def test_a_match_that_may_not_count_yet_is_passed_by() -> None:
    stops = StopStrings(["ab", "abcd"])
    assert stops.append("xab", may_match=False) == ("x", None)
    assert stops.append("c", may_match=False) == ("", None)
    assert stops.append("d") == ("", "abcd")
    stops = StopStrings(["ab"])
    assert stops.append("ab", may_match=False) == ("", None)
    assert stops.append("yab!") == ("aby", "ab")
