"""`Tokenizer`: the seam between text and token ids, and its form on the `tokenizers` library.

Does not know where a tokenizer comes from (`load.py`), nor chats, nor requests. Both directions
are safe to use from several threads at once; `encode` releases the GIL while it works.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import tokenizers

from refectory_server.tokenizer.token_spelling import TokenSpelling


class Tokenizer(Protocol):
    """Text to token ids and back.

    A token stands for bytes, not for characters: a character may be spread over several tokens.
    """

    @property
    def vocab_size(self) -> int:
        """Ids lie in [0, vocab_size). A model's own vocabulary may be padded beyond it."""
        ...

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def eos_token_id(self) -> int | None: ...

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Tokens that mark structure; `skip_special_tokens` leaves them out of the text."""
        ...

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """The text of the named ones (`bos_token`, `eos_token`, …), as chat templates use them."""
        ...

    @property
    def num_leading_spaces(self) -> int:
        """Spaces that the start of a text loses when it is decoded (sentencepiece's prefix)."""
        ...

    @property
    def max_chars_per_token(self) -> int:
        """Characters of a text that one token can stand for: longer texts need more tokens."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`. Special tokens written out in it become their ids."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for, special or not; empty for an id without a token."""
        ...


def decode_tokens(tokenizer: Tokenizer, ids: Iterable[int], skip_special_tokens: bool) -> str:
    """Decode a whole text from its tokens' bytes: what every `Tokenizer.decode` does."""
    skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
    text = b"".join(tokenizer.token_bytes(i) for i in ids if i not in skipped).decode(
        "utf-8", errors="replace"
    )
    num_spaces = len(text) - len(text.lstrip(" "))
    return text[min(num_spaces, tokenizer.num_leading_spaces) :]


_MAX_COMPOSED_CHARS = 4
"""Unicode normalisation makes at most so many characters one (alpha and three marks)."""


class HFTokenizer:
    """A `tokenizers.Tokenizer` with the bytes of its tokens."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        spelling: TokenSpelling,
        special_tokens: Mapping[str, str],
    ) -> None:
        """`special_tokens` names tokens of `backend` (`bos_token`, …); unknown ones get no id."""
        self._backend = backend
        self._spelling = spelling
        self._added_tokens = {
            token_id: token.content
            for token_id, token in backend.get_added_tokens_decoder().items()
        }
        self._bytes_by_id: dict[int, bytes] = {}
        self.special_tokens: Mapping[str, str] = dict(special_tokens)
        self.special_token_ids = frozenset(
            token_id
            for token_id, token in backend.get_added_tokens_decoder().items()
            if token.special
        )
        vocab = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = 1 + max(vocab.values(), default=-1)
        # A token is never written with fewer characters than the text it stands for.
        self.max_chars_per_token = max(map(len, vocab), default=1) * (
            1 if backend.normalizer is None else _MAX_COMPOSED_CHARS
        )
        self.num_leading_spaces = spelling.num_leading_spaces
        self.bos_token_id = self._id_of("bos_token")
        self.eos_token_id = self._id_of("eos_token")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return decode_tokens(self, ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        known = self._bytes_by_id.get(token_id)
        if known is None:
            # Two threads may both get here; they store the same value.
            known = self._bytes_by_id[token_id] = self._find_bytes(token_id)
        return known

    def _find_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.vocab_size:
            return b""
        added = self._added_tokens.get(token_id)
        if added is not None:
            return self._spelling.added_token_bytes(added)
        token = self._backend.id_to_token(token_id)
        return b"" if token is None else self._spelling.token_bytes(token)

    def _id_of(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self._backend.token_to_id(text)
