"""How a vocabulary writes bytes as token texts, read off the tokenizer's decoder.

Two families cover the decoder-only models: byte-level (every byte has a printable character,
GPT-2's alphabet) and sentencepiece (a space is `▁`, a byte without a token of its own `<0xE2>`).
Does not know ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

SENTENCEPIECE_SPACE = "▁"

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnsupportedDecoder(ValueError):
    """The decoder does something that neither family does."""


class TokenSpelling(Protocol):
    @property
    def num_leading_spaces(self) -> int: ...

    def token_bytes(self, token: str) -> bytes: ...

    def added_token_bytes(self, token: str) -> bytes:
        """Added tokens are matched in the text before the model sees it."""
        ...


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character of each byte: itself, or else U+0100 onwards in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


class ByteLevelSpelling:
    """One character a byte; what is written outside the alphabet stands for itself."""

    num_leading_spaces = 0

    def __init__(self) -> None:
        self._byte_of = byte_alphabet()

    def token_bytes(self, token: str) -> bytes:
        try:
            return bytes([self._byte_of[char] for char in token])
        except KeyError:
            return token.encode()

    def added_token_bytes(self, token: str) -> bytes:
        return token.encode()


class SentencePieceSpelling:
    """`▁` is a space, `<0xE2>` a byte."""

    def __init__(self, *, has_byte_tokens: bool, num_leading_spaces: int) -> None:
        self._has_byte_tokens = has_byte_tokens
        self.num_leading_spaces = num_leading_spaces

    def token_bytes(self, token: str) -> bytes:
        byte = _BYTE_TOKEN.fullmatch(token) if self._has_byte_tokens else None
        if byte is not None:
            return bytes.fromhex(byte[1])
        return token.replace(SENTENCEPIECE_SPACE, " ").encode()

    added_token_bytes = token_bytes


def spelling_of(decoder: Mapping[str, Any] | None) -> TokenSpelling:
    """The spelling behind the `decoder` entry of a tokenizer.json.

    Raises `UnsupportedDecoder`, naming the step, for a decoder of another family.
    """
    if decoder is None:
        raise UnsupportedDecoder("it has no decoder")
    steps = {str(step["type"]): step for step in _flatten(decoder)}
    if "ByteLevel" in steps:
        _refuse_others(steps, {"ByteLevel", "Fuse"})
        return ByteLevelSpelling()
    _refuse_others(steps, {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})
    num_leading_spaces = 0
    if "Replace" in steps:
        replace = steps["Replace"]
        if (replace["pattern"], replace["content"]) != ({"String": SENTENCEPIECE_SPACE}, " "):
            raise UnsupportedDecoder(f"its decoder replaces {replace['pattern']}")
    if "Strip" in steps:
        strip = steps["Strip"]
        if (strip["content"], strip["stop"]) != (" ", 0):
            raise UnsupportedDecoder(f"its decoder strips {strip['content']!r} at both ends")
        num_leading_spaces = int(strip["start"])
    if "Metaspace" in steps:
        num_leading_spaces = _metaspace_leading_spaces(steps["Metaspace"])
    return SentencePieceSpelling(
        has_byte_tokens="ByteFallback" in steps, num_leading_spaces=num_leading_spaces
    )


def _flatten(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from _flatten(step)
    else:
        yield decoder


def _refuse_others(steps: Mapping[str, Any], supported: set[str]) -> None:
    others = sorted(steps.keys() - supported)
    if others:
        raise UnsupportedDecoder(f"its decoder has the unsupported step {others[0]}")


def _metaspace_leading_spaces(metaspace: Mapping[str, Any]) -> int:
    if metaspace["replacement"] != SENTENCEPIECE_SPACE:
        raise UnsupportedDecoder(f"its decoder writes spaces as {metaspace['replacement']!r}")
    return 0 if metaspace["prepend_scheme"] == "never" else 1
