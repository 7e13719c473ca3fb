"""`IncrementalDetokenizer`: text from token ids as they come, each token looked at once.

Owns the bytes of an unfinished character. Does not know stop strings, nor requests.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from refectory_server.tokenizer.tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """The pieces it returns, joined, are the decoding of all the ids at once.

    At most 3 bytes are held back: those of a character that may still become whole. What can no
    longer become one is U+FFFD at once, as `bytes.decode("utf-8", errors="replace")` has it.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_tail_ids: Iterable[int], skip_special_tokens: bool
    ) -> None:
        """`prompt_tail_ids`: the last ids before those to come, none at the start of a text.

        A text that goes on keeps its first space, and a character that the prompt left unfinished
        is finished in the output.
        """
        self._token_bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._decoder = _Utf8Decoder(errors="replace")
        tail = self._join(prompt_tail_ids)
        self._num_spaces_to_drop = 0 if tail else tokenizer.num_leading_spaces
        self._decoder.decode(tail)

    def append(self, token_ids: Iterable[int]) -> str:
        """The characters that these ids complete."""
        return self._without_prefix(self._decoder.decode(self._join(token_ids)))

    def flush(self) -> str:
        """What is held back, now that nothing follows: at most one U+FFFD a sequence."""
        return self._without_prefix(self._decoder.decode(b"", final=True))

    def _join(self, token_ids: Iterable[int]) -> bytes:
        skipped, token_bytes = self._skipped, self._token_bytes
        return b"".join([token_bytes(i) for i in token_ids if i not in skipped])

    def _without_prefix(self, text: str) -> str:
        while text and self._num_spaces_to_drop:
            if text[0] != " ":
                self._num_spaces_to_drop = 0
                break
            text = text[1:]
            self._num_spaces_to_drop -= 1
        return text
