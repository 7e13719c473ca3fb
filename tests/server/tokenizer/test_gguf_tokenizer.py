"""Tokenizers from GGUF metadata: pre-tokenizers, special tokens, errors."""

from __future__ import annotations

from typing import Any

import pytest

from refectory_server.errors import StartupError
from refectory_server.models.gguf_metadata import read_gguf_metadata
from refectory_server.models.source import ModelFiles
from refectory_server.tokenizer.gguf import gguf_chat_template, tokenizer_from_gguf
from refectory_server.tokenizer.token_spelling import byte_alphabet
from refectory_server.tokenizer.tokenizer import HFTokenizer

CHAR_OF_BYTE = {byte: char for char, byte in byte_alphabet().items()}
WORDS = ["12", "123", "1234", "ab", "abc"]
"""Tokens beside the single bytes, with ids from 256; no merge builds `abc` from `ab` and `c`."""


def metadata(**keys: Any) -> dict[str, Any]:
    """A vocabulary of bytes, a few words, and three marked tokens from id 261."""
    tokens = [CHAR_OF_BYTE[byte] for byte in range(256)]
    tokens += [*WORDS, "<s>", "</s>", "<think>"]
    values = {
        "model": "gpt2",
        "tokens": tokens,
        "token_type": [1] * 261 + [3, 3, 4],
        "merges": ["1 2", "12 3", "123 4", "a b"],
        "bos_token_id": 261,
        "eos_token_id": 262,
        **keys,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def tokenizer(**keys: Any) -> HFTokenizer:
    return tokenizer_from_gguf(metadata(**keys), source="m.gguf")


def pieces(text: str, **keys: Any) -> list[bytes]:
    made = tokenizer(**keys)
    return [made.token_bytes(i) for i in made.encode(text, add_special_tokens=False)]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        (None, [b"1234"]),
        ("default", [b"1234"]),
        ("gpt-2", [b"1234"]),
        ("smollm", [b"1", b"2", b"3", b"4"]),
        ("qwen2", [b"1", b"2", b"3", b"4"]),
        ("llama-bpe", [b"123", b"4"]),
        ("llama3", [b"123", b"4"]),
        ("llama-v3", [b"123", b"4"]),
    ],
)
def test_each_pre_tokenizer_cuts_digits_its_way(pre: str | None, expected: list[bytes]) -> None:
    assert pieces("1234", pre=pre) == expected


def test_whole_words_are_taken_where_the_family_does_so() -> None:
    assert pieces("abc", pre="llama-bpe") == [b"abc"]
    assert pieces("abc", pre="gpt-2") == [b"ab", b"c"]


def test_text_is_normalised_where_the_family_does_so() -> None:
    decomposed = "e\u0301"
    assert b"".join(pieces(decomposed, pre="qwen2")) == "é".encode()
    assert b"".join(pieces(decomposed, pre="gpt-2")) == decomposed.encode()


@pytest.mark.parametrize(
    ("keys", "ids"),
    [
        ({}, [97]),
        ({"add_bos_token": True}, [261, 97]),
        ({"add_bos_token": True, "add_eos_token": True}, [261, 97, 262]),
        ({"add_eos_token": True}, [97, 262]),
        ({"pre": "llama-bpe"}, [261, 97]),
        ({"pre": "llama-bpe", "add_bos_token": False}, [97]),
        ({"add_bos_token": True, "bos_token_id": None}, [97]),
    ],
)
def test_what_encode_adds(keys: dict[str, Any], ids: list[int]) -> None:
    assert tokenizer(**keys).encode("a") == ids
    assert tokenizer(**keys).encode("a", add_special_tokens=False) == [97]


def test_marked_tokens_are_whole_and_only_control_ones_are_hidden() -> None:
    made = tokenizer()
    ids = made.encode("<think>a</s>")
    assert ids == [263, 97, 262]
    assert made.decode(ids) == "<think>a"
    assert made.decode(ids, skip_special_tokens=False) == "<think>a</s>"
    assert made.special_token_ids == {261, 262}
    assert made.vocab_size == 264
    assert made.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": "llama"}, "tokenizer.ggml.model is llama; known: gpt2"),
        ({"model": None}, "tokenizer.ggml.model is missing; needed is a str"),
        (
            {"pre": "tekken"},
            "tokenizer.ggml.pre is tekken; known: default, gpt-2, llama-bpe, llama-v3, llama3, "
            "qwen2, smollm",
        ),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing; needed is a list"),
        ({"tokens": "abc"}, "tokenizer.ggml.tokens is a str; needed is a list"),
        ({"merges": None}, "tokenizer.ggml.merges is missing; needed is a list"),
        ({"merges": ["a z", "zz q"]}, "tokenizer.ggml.merges do not fit the tokens: "),
    ],
)
def test_what_is_not_known_stops_the_start(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(StartupError) as caught:
        tokenizer(**keys)
    assert str(caught.value).startswith(f"m.gguf: {message}")
    assert caught.value.reason == "TokenizerInvalid"


def test_the_embedded_files_keys(embedded_files: ModelFiles) -> None:
    keys = read_gguf_metadata(embedded_files.path)
    assert keys["tokenizer.ggml.pre"] == "smollm"
    assert len(keys["tokenizer.ggml.tokens"]) == 49152
    assert len(keys["tokenizer.ggml.merges"]) == 48900
    template = gguf_chat_template(keys)
    assert template is not None
    assert template.startswith("{% for message in messages %}")
    assert gguf_chat_template({}) is None
    with pytest.raises(
        StartupError, match="chat_template is a list; it must be a string"
    ) as caught:
        gguf_chat_template({"tokenizer.chat_template": ["x"]})
    assert caught.value.reason == "ChatTemplateInvalid"
