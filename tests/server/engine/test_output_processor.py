"""`OutputProcessor`: text, ids and ends of one request, step by step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refectory_server.core.request import FinishReason
from refectory_server.engine.messages import EngineOutput
from refectory_server.engine.output_processor import OutputProcessor, ProcessedOutput
from refectory_server.sampling_params import SamplingParams
from refectory_server.testing.sentencepiece_tokenizer import sentencepiece_tokenizer
from refectory_server.tokenizer.byte_tokenizer import ByteTokenizer

PROMPT = list(b"prompt")
EOS = 256


def output_processor(**params: Any) -> OutputProcessor:
    return OutputProcessor(ByteTokenizer(), PROMPT, SamplingParams(**params))


def step(ids: bytes | list[int], finish_reason: FinishReason | None = None) -> EngineOutput:
    return EngineOutput("r", new_token_ids=list(ids), finish_reason=finish_reason)


def going_on(text: str, ids: bytes) -> ProcessedOutput:
    return ProcessedOutput(text, tuple(ids), None)


def test_text_and_ids_of_each_step() -> None:
    processor = output_processor()
    assert processor.process(step(b"ab")) == going_on("ab", b"ab")
    assert processor.process(step(b"")) == going_on("", b"")
    assert processor.process(step(b"c", FinishReason.LENGTH)) == ProcessedOutput(
        "c", (99,), FinishReason.LENGTH
    )


def test_half_a_character_waits_and_is_not_lost_at_the_end() -> None:
    processor = output_processor()
    assert processor.process(step(b"a\xe2\x82")) == going_on("a", b"a\xe2\x82")
    assert processor.process(step(b"\xac\xe2")) == going_on("€", b"\xac\xe2")
    last = processor.process(step(b"\x82", FinishReason.LENGTH))
    assert last == ProcessedOutput("\ufffd", (0x82,), FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({}, "a"),
        ({"skip_special_tokens": False}, "a<|endoftext|>"),
        ({"skip_special_tokens": False, "stop_token_ids": (EOS,)}, "a"),
    ],
)
def test_the_end_token_counts_and_shows_only_if_asked(params: dict[str, Any], text: str) -> None:
    processor = output_processor(**params)
    assert processor.process(step([97, EOS], FinishReason.STOP)) == ProcessedOutput(
        text, (97, EOS), FinishReason.STOP
    )


def test_an_ordinary_stop_token_is_not_text() -> None:
    processor = output_processor(stop_token_ids=(10,))
    assert processor.process(step(b"a\n", FinishReason.STOP)).text == "a"


def test_an_ignored_end_token_is_skipped_and_counted() -> None:
    processor = output_processor(ignore_eos=True)
    assert processor.process(step([97, EOS, 98], FinishReason.LENGTH)) == ProcessedOutput(
        "ab", (97, EOS, 98), FinishReason.LENGTH
    )


def test_a_stop_string_ends_the_request_at_the_id_that_completed_it() -> None:
    processor = output_processor(stop=("END",))
    assert processor.process(step(b"so E")) == going_on("so ", b"so E")
    assert processor.process(step(b"NDless")) == ProcessedOutput("", (78, 68), FinishReason.STOP)


def test_a_stop_string_in_the_last_step_needs_no_abort() -> None:
    processor = output_processor(stop=("END",))
    assert processor.process(step(b"so END!", FinishReason.LENGTH)) == ProcessedOutput(
        "so ", tuple(b"so END"), FinishReason.STOP
    )


def test_a_stop_string_completed_by_the_final_flush() -> None:
    processor = output_processor(stop=("\ufffd",))
    assert processor.process(step(b"a\xe2", FinishReason.LENGTH)) == ProcessedOutput(
        "a", (97, 0xE2), FinishReason.STOP
    )


def test_a_stop_strings_beginning_is_not_lost_at_the_end() -> None:
    processor = output_processor(stop=("END",))
    assert processor.process(step(b"so EN")).text == "so "
    assert processor.process(step([EOS], FinishReason.STOP)) == ProcessedOutput(
        "EN", (EOS,), FinishReason.STOP
    )


def test_an_end_without_tokens_releases_what_is_held() -> None:
    processor = output_processor(stop=("END",))
    processor.process(step(b"E\xe2"))
    assert processor.process(step(b"", FinishReason.ABORT)) == ProcessedOutput(
        "E\ufffd", (), FinishReason.ABORT
    )


@pytest.mark.parametrize(
    ("params", "text", "num_ids"),
    [
        ({}, "so ", 6),
        ({"include_stop_str_in_output": True}, "so END", 6),
        ({"min_tokens": 5}, "so ", 6),
        # Its last character comes with the sixth token, and six must come before the end.
        ({"min_tokens": 6}, "so ENDless ", 14),
    ],
)
def test_where_a_stop_string_ends_the_text(params: dict[str, Any], text: str, num_ids: int) -> None:
    processor = output_processor(stop=("END",), **params)
    last = processor.process(step(b"so ENDless END", FinishReason.LENGTH))
    assert last == ProcessedOutput(text, tuple(b"so ENDless END"[:num_ids]), FinishReason.STOP)


@pytest.mark.parametrize(
    ("params", "text"),
    [({"stop_token_ids": (10,)}, "a\n"), ({"skip_special_tokens": False}, "a\n")],
)
def test_the_end_token_stays_in_the_text_if_asked_to(params: dict[str, Any], text: str) -> None:
    processor = output_processor(include_stop_str_in_output=True, **params)
    assert processor.process(step(b"a\n", FinishReason.STOP)).text == text


def test_stop_strings_do_not_match_in_the_prompt() -> None:
    assert output_processor(stop=("tx",)).process(step(b"x")).text == "x"


def test_the_output_keeps_its_first_space_after_a_prompt() -> None:
    tokenizer = sentencepiece_tokenizer()
    prompt = tokenizer.encode("hello")
    processor = OutputProcessor(tokenizer, prompt, SamplingParams())
    assert processor.process(EngineOutput("r", new_token_ids=[290, 290])).text == " hello hello"
    only_bos = OutputProcessor(tokenizer, [1], SamplingParams())
    assert only_bos.process(EngineOutput("r", new_token_ids=[290, 290])).text == "hello hello"


@pytest.mark.parametrize("finish_reason", list(FinishReason))
def test_nothing_may_follow_the_end(finish_reason: FinishReason) -> None:
    processor = output_processor()
    processor.process(step(b"", finish_reason))
    with pytest.raises(RuntimeError, match=f"output after its end \\({finish_reason}\\)"):
        processor.process(step(b"a"))


@settings(derandomize=True, deadline=None, max_examples=400)
@given(
    ids=st.lists(st.sampled_from([*b"ab\xe2\x82\xac", EOS]), max_size=16),
    cuts=st.lists(st.integers(0, 16), max_size=4),
    stop=st.lists(st.sampled_from(["a", "ab", "ba€", "€€", "bb\ufffd"]), max_size=3),
)
def test_steps_of_any_size_give_the_same_text_and_ids(
    ids: list[int], cuts: list[int], stop: list[str]
) -> None:
    def run(bounds: list[int]) -> tuple[str, tuple[int, ...], FinishReason | None]:
        processor = output_processor(stop=tuple(stop))
        text = ""
        token_ids: list[int] = []
        for start, end in zip([0, *bounds], [*bounds, len(ids)], strict=True):
            is_last = end == len(ids) and start == max([0, *bounds])
            piece = processor.process(
                step(ids[start:end], FinishReason.LENGTH if is_last else None)
            )
            text += piece.text
            token_ids += piece.token_ids
            if piece.finish_reason is not None:
                return text, tuple(token_ids), piece.finish_reason
        return text, tuple(token_ids), None

    whole = run([])
    assert run(sorted({cut for cut in cuts if cut < len(ids)})) == whole
    assert run(list(range(1, len(ids)))) == whole
    if not stop:
        assert whole == (ByteTokenizer().decode(ids), tuple(ids), FinishReason.LENGTH)
