"""`IncrementalDetokenizer` by example, and against decoding the whole at once."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from refectory_server.testing.sentencepiece_tokenizer import sentencepiece_tokenizer
from refectory_server.tokenizer.byte_tokenizer import ByteTokenizer
from refectory_server.tokenizer.detokenizer import IncrementalDetokenizer
from refectory_server.tokenizer.tokenizer import HFTokenizer, Tokenizer

BYTES = ByteTokenizer()
SENTENCEPIECE = sentencepiece_tokenizer()

# Bytes that start, continue and break UTF-8 sequences, and letters between them.
TRICKY_BYTES = [
    *(0x00, 0x20, 0x61, 0x7F, 0x80, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xC3, 0xDF),
    *(0xE0, 0xE2, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF, 256, 257, 258),
]


def detokenize(
    tokenizer: Tokenizer,
    ids: list[int],
    cuts: list[int],
    *,
    prompt_tail_ids: tuple[int, ...] = (),
    skip_special_tokens: bool = True,
) -> list[str]:
    """The pieces when `ids` come in steps that end at `cuts`, then the flush."""
    detokenizer = IncrementalDetokenizer(tokenizer, prompt_tail_ids, skip_special_tokens)
    bounds = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    pieces = [detokenizer.append(ids[a:b]) for a, b in itertools.pairwise(bounds)]
    return [*pieces, detokenizer.flush()]


def test_half_a_character_is_held_back() -> None:
    ids = list("a€😀".encode())
    detokenizer = IncrementalDetokenizer(BYTES, (), True)
    pieces = [detokenizer.append([i]) for i in ids]
    assert pieces == ["a", "", "", "€", "", "", "", "😀"]
    assert detokenizer.flush() == ""


def test_what_can_no_longer_become_a_character_is_replaced_at_once() -> None:
    detokenizer = IncrementalDetokenizer(BYTES, (), True)
    assert detokenizer.append([0xE2, 0x82]) == ""
    assert detokenizer.append([0x61]) == "\ufffda"
    assert detokenizer.append([0xFF]) == "\ufffd"
    assert detokenizer.append([0xF0, 0x9F, 0x98]) == ""
    assert detokenizer.flush() == "\ufffd"


def test_special_tokens_are_skipped_or_shown() -> None:
    ids = [257, 97, 258]
    assert detokenize(BYTES, ids, []) == ["a", ""]
    shown = detokenize(BYTES, ids, [1, 2], skip_special_tokens=False)
    assert shown == ["<|im_start|>", "a", "<|im_end|>", ""]


def test_a_character_begun_by_the_prompt_is_finished() -> None:
    euro = list("€".encode())
    assert detokenize(BYTES, euro[2:], [], prompt_tail_ids=tuple(euro[:2])) == ["€", ""]


def test_the_first_space_goes_only_at_the_start_of_a_text() -> None:
    ids = SENTENCEPIECE.encode("hello hello", add_special_tokens=False)
    bos = SENTENCEPIECE.bos_token_id
    assert bos is not None
    assert detokenize(SENTENCEPIECE, ids, [1]) == ["hello", " hello", ""]
    assert detokenize(SENTENCEPIECE, ids, [1], prompt_tail_ids=(bos,)) == ["hello", " hello", ""]
    assert detokenize(SENTENCEPIECE, ids, [1], prompt_tail_ids=(bos, ids[0])) == [
        " hello",
        " hello",
        "",
    ]


def test_a_long_text_costs_one_look_a_token() -> None:
    """The bytes asked for are those of the new token, however long the text already is."""
    looks: list[int] = []

    class Counting(ByteTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            looks.append(token_id)
            return super().token_bytes(token_id)

    detokenizer = IncrementalDetokenizer(Counting(), (), True)
    for _ in range(5000):
        detokenizer.append([97])
    assert len(looks) == 5000


CUTS = st.lists(st.integers(0, 64), max_size=8)


@settings(derandomize=True, deadline=None, max_examples=600)
@given(ids=st.lists(st.sampled_from(TRICKY_BYTES), max_size=24), cuts=CUTS, skip=st.booleans())
def test_bytes_in_any_steps_give_the_decoding_of_the_whole(
    ids: list[int], cuts: list[int], skip: bool
) -> None:
    pieces = detokenize(BYTES, ids, cuts, skip_special_tokens=skip)
    assert "".join(pieces) == BYTES.decode(ids, skip)
    raw = b"".join(BYTES.token_bytes(i) for i in ids if i < 256 or not skip)
    assert "".join(pieces) == raw.decode("utf-8", errors="replace")


@settings(derandomize=True, deadline=None, max_examples=300)
@given(ids=st.lists(st.integers(0, 260), max_size=24), cuts=CUTS)
def test_never_more_than_three_bytes_are_held(ids: list[int], cuts: list[int]) -> None:
    detokenizer = IncrementalDetokenizer(BYTES, (), True)
    emitted, seen = "", b""
    for token_id in ids:
        emitted += detokenizer.append([token_id])
        seen += bytes([token_id]) if token_id < 256 else b""
        held = next(
            n for n in range(4) if seen[: len(seen) - n].decode("utf-8", "replace") == emitted
        )
        assert held == 0 or seen[len(seen) - held] >= 0xC2


@settings(derandomize=True, deadline=None, max_examples=400)
@given(ids=st.lists(st.integers(0, 49160), max_size=24), cuts=CUTS, skip=st.booleans())
def test_embedded_tokens_in_any_steps_give_the_decoding_of_the_whole(
    ids: list[int], cuts: list[int], skip: bool, embedded_tokenizer: HFTokenizer
) -> None:
    pieces = detokenize(embedded_tokenizer, ids, cuts, skip_special_tokens=skip)
    assert "".join(pieces) == embedded_tokenizer.decode(ids, skip)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(text=st.text(st.characters(min_codepoint=32, max_codepoint=0x3FFFF), max_size=20), cuts=CUTS)
def test_embedded_text_comes_back_in_any_steps(
    text: str, cuts: list[int], embedded_tokenizer: HFTokenizer
) -> None:
    ids = embedded_tokenizer.encode(text)
    pieces = detokenize(embedded_tokenizer, ids, cuts, skip_special_tokens=False)
    assert "".join(pieces) == text


@settings(derandomize=True, deadline=None, max_examples=400)
@given(
    ids=st.lists(st.integers(0, SENTENCEPIECE.vocab_size), max_size=24),
    num_prompt_tokens=st.integers(0, 8),
    cuts=CUTS,
    skip=st.booleans(),
)
def test_sentencepiece_output_continues_its_prompt(
    ids: list[int], num_prompt_tokens: int, cuts: list[int], skip: bool
) -> None:
    """Prompt and output, each decoded on its own terms, are the text of both together."""
    prompt, output = ids[:num_prompt_tokens], ids[num_prompt_tokens:]
    pieces = detokenize(
        SENTENCEPIECE, output, cuts, prompt_tail_ids=tuple(prompt), skip_special_tokens=skip
    )
    whole = SENTENCEPIECE.decode(ids, skip)
    prompt_text = IncrementalDetokenizer(SENTENCEPIECE, (), skip).append(prompt)
    assert prompt_text + "".join(pieces) == whole
