"""Log-probabilities go out with the text of their tokens, each at its place, none of them lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refectory_server.core.request import FinishReason
from refectory_server.core.scheduler_output import TokenLogprobs
from refectory_server.engine.messages import EngineOutput
from refectory_server.engine.output_processor import OutputProcessor
from refectory_server.engine.text_logprobs import TextLogprobs
from refectory_server.sampling_params import SamplingParams
from refectory_server.tokenizer.byte_tokenizer import ByteTokenizer

EOS = 256


def processor(**params: Any) -> OutputProcessor:
    return OutputProcessor(ByteTokenizer(), list(b"prompt"), SamplingParams(logprobs=0, **params))


def step(ids: bytes | list[int], finish_reason: FinishReason | None = None) -> EngineOutput:
    """The log-probability of each id is minus the id."""
    return EngineOutput(
        "r",
        new_token_ids=list(ids),
        finish_reason=finish_reason,
        logprobs=[TokenLogprobs(-float(token_id), 1, ()) for token_id in ids],
    )


def places(logprobs: tuple[TextLogprobs, ...]) -> list[tuple[int, int, bool]]:
    """(token, offset in the text, whether it is part of it); checks that each has its own value."""
    assert all(entry.logprobs.logprob == -entry.token_id for entry in logprobs)
    return [(entry.token_id, entry.text_offset, entry.is_in_text) for entry in logprobs]


def test_each_token_with_its_text() -> None:
    running = processor()
    assert places(running.process(step(b"ab")).logprobs) == [(97, 0, True), (98, 1, True)]
    last = running.process(step(b"c", FinishReason.LENGTH))
    assert places(last.logprobs) == [(99, 2, True)]


def test_a_character_of_several_tokens_goes_out_whole() -> None:
    running = processor()
    assert places(running.process(step(b"a\xe2\x82")).logprobs) == [(97, 0, True)]
    assert places(running.process(step(b"\xacb")).logprobs) == [
        *((0xE2, 1, True), (0x82, 1, True), (0xAC, 1, True)),
        (98, 2, True),
    ]


def test_half_a_character_at_the_end() -> None:
    last = processor().process(step(b"a\xe2\x82", FinishReason.LENGTH))
    assert last.text == "a\ufffd"
    assert places(last.logprobs) == [(97, 0, True), (0xE2, 1, True), (0x82, 1, True)]


def test_what_a_stop_string_may_cut_waits_and_is_marked_when_it_does() -> None:
    running = processor(stop=("END",))
    assert places(running.process(step(b"so E")).logprobs) == [
        *((115, 0, True), (111, 1, True), (32, 2, True)),
    ]
    assert running.process(step(b"N")).logprobs == ()
    last = running.process(step(b"D"))
    assert last.finish_reason is FinishReason.STOP
    assert places(last.logprobs) == [(69, 3, False), (78, 4, False), (68, 5, False)]


def test_what_was_held_for_a_stop_string_goes_out_when_it_is_none() -> None:
    running = processor(stop=("END",))
    assert running.process(step(b"EN")).logprobs == ()
    assert places(running.process(step(b"E")).logprobs) == [(69, 0, True), (78, 1, True)]
    last = running.process(step(b"", FinishReason.ABORT))
    assert places(last.logprobs) == [(69, 2, True)]


def test_a_stop_string_that_stays_in_the_text() -> None:
    last = processor(stop=("END",), include_stop_str_in_output=True).process(step(b"aENDx"))
    assert (last.text, last.token_ids) == ("aEND", tuple(b"aEND"))
    assert places(last.logprobs) == [(i, at, True) for at, i in enumerate(b"aEND")]


@pytest.mark.parametrize(
    ("params", "text", "is_in_text"),
    [
        ({}, "a", False),
        ({"skip_special_tokens": False}, "a<|endoftext|>", True),
        ({"skip_special_tokens": False, "stop_token_ids": (EOS,)}, "a", False),
    ],
)
def test_the_end_token(params: dict[str, Any], text: str, is_in_text: bool) -> None:
    last = processor(**params).process(step([97, EOS], FinishReason.STOP))
    assert last.text == text
    assert places(last.logprobs) == [(97, 0, True), (EOS, 1, is_in_text)]


def test_without_being_asked_for_there_are_none() -> None:
    running = OutputProcessor(ByteTokenizer(), [1], SamplingParams())
    assert running.process(EngineOutput("r", new_token_ids=[97])).logprobs == ()


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    ids=st.lists(st.sampled_from([*b"ab\xe2\x82\xac", EOS]), min_size=1, max_size=16),
    cuts=st.lists(st.integers(1, 15), max_size=4),
    stop=st.lists(st.sampled_from(["a", "ab", "ba€", "€€", "bb\ufffd"]), max_size=3),
)
def test_one_for_each_id_in_order_however_they_come(
    ids: list[int], cuts: list[int], stop: list[str]
) -> None:
    def run(bounds: list[int]) -> tuple[str, list[int], list[tuple[int, int, bool]]]:
        running = processor(stop=tuple(stop), ignore_eos=True)
        text = ""
        token_ids: list[int] = []
        entries: list[tuple[int, int, bool]] = []
        for start, end in zip([0, *bounds], [*bounds, len(ids)], strict=True):
            piece = running.process(
                step(ids[start:end], FinishReason.LENGTH if end == len(ids) else None)
            )
            text += piece.text
            token_ids += piece.token_ids
            entries += places(piece.logprobs)
            if piece.finish_reason is not None:
                break
            assert all(offset < len(text) for _, offset, _ in entries)
        return text, token_ids, entries

    whole = run([])
    assert run(sorted({cut for cut in cuts if cut < len(ids)})) == whole
    text, token_ids, entries = whole
    assert [token_id for token_id, _, _ in entries] == token_ids
    in_text = [i for i, _, is_in_text in entries if is_in_text and i != EOS]
    # What is in the text is a beginning of the tokens, and says all of it.
    assert bytes(in_text).decode(errors="replace").startswith(text)
