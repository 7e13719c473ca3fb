"""`token_bytes` for both spellings, and decoding against the `tokenizers` library."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refectory_server.testing.sentencepiece_tokenizer import (
    sentencepiece_backend,
    sentencepiece_tokenizer,
)
from refectory_server.tokenizer.token_spelling import (
    ByteLevelSpelling,
    SentencePieceSpelling,
    UnsupportedDecoder,
    byte_alphabet,
    spelling_of,
)

REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
LLAMA2 = {
    "type": "Sequence",
    "decoders": [REPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}, STRIP],
}
GEMMA = {"type": "Sequence", "decoders": [REPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}]}

TOKENIZER = sentencepiece_tokenizer()
BACKEND = sentencepiece_backend()


def test_the_byte_alphabet_has_a_character_for_each_byte() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["a"], alphabet["Ġ"], alphabet["Ċ"], alphabet["â"]) == (97, 32, 10, 0xE2)


def test_byte_level_tokens() -> None:
    spelling = ByteLevelSpelling()
    assert spelling.token_bytes("Ġhello") == b" hello"
    assert spelling.token_bytes("âĤ¬") == "€".encode()
    assert spelling.token_bytes("<|end▁of▁text|>") == "<|end▁of▁text|>".encode()
    assert spelling.added_token_bytes("é") == "é".encode()
    assert spelling.num_leading_spaces == 0


def test_sentencepiece_tokens() -> None:
    spelling = spelling_of(LLAMA2)
    assert spelling.token_bytes("▁hello▁") == b" hello "
    assert spelling.token_bytes("<0xE2>") == b"\xe2"
    assert spelling.token_bytes("<0xE2>>") == b"<0xE2>>"
    assert spelling.added_token_bytes("▁▁") == b"  "
    assert spelling.num_leading_spaces == 1


def test_byte_tokens_are_text_without_byte_fallback() -> None:
    spelling = SentencePieceSpelling(has_byte_tokens=False, num_leading_spaces=0)
    assert spelling.token_bytes("<0xE2>") == b"<0xE2>"


@pytest.mark.parametrize(
    ("decoder", "num_leading_spaces"),
    [
        (GEMMA, 0),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}, 1),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}, 1),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False}, 0),
    ],
)
def test_the_decoder_tells_the_leading_spaces(
    decoder: dict[str, Any], num_leading_spaces: int
) -> None:
    assert spelling_of(decoder).num_leading_spaces == num_leading_spaces


def test_byte_level_is_recognised() -> None:
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    assert isinstance(spelling_of(decoder), ByteLevelSpelling)
    assert isinstance(
        spelling_of({"type": "Sequence", "decoders": [decoder, {"type": "Fuse"}]}),
        ByteLevelSpelling,
    )


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (None, "it has no decoder"),
        ({"type": "WordPiece", "prefix": "##"}, "unsupported step WordPiece"),
        ({**REPLACE, "pattern": {"Regex": "x"}}, "replaces {'Regex': 'x'}"),
        ({**STRIP, "stop": 1}, "strips ' ' at both ends"),
        ({"type": "Metaspace", "replacement": "_", "prepend_scheme": "never"}, "spaces as '_'"),
        (
            {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, STRIP]},
            "unsupported step Strip",
        ),
    ],
)
def test_other_decoders_are_refused(decoder: dict[str, Any] | None, message: str) -> None:
    with pytest.raises(UnsupportedDecoder, match=message):
        spelling_of(decoder)


def test_sentencepiece_facts() -> None:
    assert TOKENIZER.encode("hello hello") == [1, *TOKENIZER.encode("hello hello", False)]
    assert [TOKENIZER.token_bytes(i) for i in TOKENIZER.encode("hello €")] == [
        b"<s>", b" hello", b" ", b"\xe2", b"\x82", b"\xac",
    ]  # fmt: skip
    assert TOKENIZER.special_token_ids == {0, 1, 2}
    assert (TOKENIZER.bos_token_id, TOKENIZER.eos_token_id) == (1, 2)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(text=st.text(st.sampled_from("hello ▁é€😀<s>\n"), max_size=20), skip=st.booleans())
def test_sentencepiece_decodes_as_the_library(text: str, skip: bool) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids, skip) == BACKEND.decode(ids, skip_special_tokens=skip)
