"""A tokenizer from the metadata of a GGUF file.

Owns the `tokenizer.*` keys: the vocabulary, how each known pre-tokenizer splits text, which tokens
are special. Byte-level BPE only. Does not read files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from refectory_server.errors import StartupError
from refectory_server.tokenizer.bos_eos import set_added_bos_eos
from refectory_server.tokenizer.token_spelling import ByteLevelSpelling
from refectory_server.tokenizer.tokenizer import HFTokenizer

_CONTROL = 3
_USER_DEFINED = 4

_NAMED_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """How one family of vocabularies cuts text before merging."""

    split: str | None = None
    """The pieces, as a pattern; None: GPT-2's."""
    splits_digits: bool = False
    """Every digit is a piece of its own, cut out first."""
    takes_whole_words: bool = False
    """A piece that is a token as it stands is not built up from merges."""
    normalizes: bool = False
    """Text is brought to Unicode's NFC first."""
    adds_bos: bool = False
    """Where the file does not say."""


def _split_pattern(max_digits: int) -> str:
    digits = rf"\p{{N}}{{1,{max_digits}}}" if max_digits > 1 else r"\p{N}"
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_GPT2 = _PreTokenizer()
_LLAMA3 = _PreTokenizer(split=_split_pattern(3), takes_whole_words=True, adds_bos=True)

PRE_TOKENIZERS: Mapping[str, _PreTokenizer] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _PreTokenizer(split=_split_pattern(1), normalizes=True),
    "smollm": _PreTokenizer(splits_digits=True),
}


def tokenizer_from_gguf(metadata: Mapping[str, Any], *, source: str) -> HFTokenizer:
    """The tokenizer that `metadata` describes. `source` names the file in errors.

    Raises `StartupError` with reason `TokenizerInvalid` for a kind not known here.
    """
    keys = _Keys(metadata, source)
    model = keys.required("model", str)
    if model != "gpt2":
        raise keys.invalid(f"tokenizer.ggml.model is {model}; known: gpt2 (byte-level BPE)")
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise keys.invalid(f"tokenizer.ggml.pre is {name}; known: {known}")
    pre_tokenizer = PRE_TOKENIZERS[name]
    tokens: list[str] = keys.required("tokens", list)
    backend = _build(tokens, keys, pre_tokenizer)
    special_tokens = {
        token_name: tokens[token_id]
        for token_name, key in _NAMED_TOKENS.items()
        if (token_id := metadata.get(f"tokenizer.ggml.{key}")) is not None
        and 0 <= token_id < len(tokens)
    }
    _add_marked_tokens(backend, tokens, metadata.get("tokenizer.ggml.token_type") or [])
    set_added_bos_eos(
        backend,
        special_tokens,
        add_bos=metadata.get("tokenizer.ggml.add_bos_token", pre_tokenizer.adds_bos),
        add_eos=metadata.get("tokenizer.ggml.add_eos_token", False),
    )
    return HFTokenizer(backend, ByteLevelSpelling(), special_tokens)


def gguf_chat_template(metadata: Mapping[str, Any]) -> str | None:
    """Raises `StartupError` with reason `ChatTemplateInvalid` for one that is no text."""
    template = metadata.get("tokenizer.chat_template")
    if not isinstance(template, str | None):
        raise StartupError(
            f"tokenizer.chat_template is a {type(template).__name__}; it must be a string; "
            "--chat-template takes its place",
            reason="ChatTemplateInvalid",
        )
    return template


class _Keys:
    """The `tokenizer.ggml.*` keys, with errors that name file and key."""

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self._metadata = metadata
        self._source = source

    def required(self, key: str, kind: type) -> Any:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(value, kind):
            found = "missing" if value is None else f"a {type(value).__name__}"
            raise self.invalid(f"tokenizer.ggml.{key} is {found}; needed is a {kind.__name__}")
        return value

    def invalid(self, message: str) -> StartupError:
        return StartupError(f"{self._source}: {message}", reason="TokenizerInvalid")


def _build(tokens: list[str], keys: _Keys, pre_tokenizer: _PreTokenizer) -> tokenizers.Tokenizer:
    merges = [merge.partition(" ") for merge in keys.required("merges", list)]
    try:
        model = models.BPE(
            vocab={token: token_id for token_id, token in enumerate(tokens)},
            merges=[(left, right) for left, _, right in merges],
            ignore_merges=pre_tokenizer.takes_whole_words,
        )
    except Exception as error:  # the library raises nothing more precise
        raise keys.invalid(f"tokenizer.ggml.merges do not fit the tokens: {error}") from error
    backend = tokenizers.Tokenizer(model)
    if pre_tokenizer.normalizes:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _splitter(pre_tokenizer)
    return backend


def _splitter(pre_tokenizer: _PreTokenizer) -> pre_tokenizers.PreTokenizer:
    if pre_tokenizer.split is not None:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pre_tokenizer.split), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if not pre_tokenizer.splits_digits:
        return byte_level
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])


def _add_marked_tokens(
    backend: tokenizers.Tokenizer, tokens: list[str], token_types: list[int]
) -> None:
    """Control tokens are special; user-defined ones are matched whole in the text, but shown."""
    backend.add_tokens(
        [
            AddedToken(token, normalized=False, special=token_type == _CONTROL)
            for token, token_type in zip(tokens, token_types, strict=False)
            if token_type in (_CONTROL, _USER_DEFINED)
        ]
    )
