"""`TextLogprobs`: a token's log-probabilities with its place in the text, and when they may go out.

Owns the entries of tokens whose text is not out yet: a stop string may still cut it off. Knows no
tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass

from refectory_server.core.scheduler_output import TokenLogprobs


@dataclass(frozen=True, slots=True)
class TextLogprobs:
    """Of one output token."""

    token_id: int
    logprobs: TokenLogprobs
    text_offset: int
    """Whole characters of the output before this token."""
    is_in_text: bool
    """False for a token that a stop string cut off, or an end token that the text leaves out."""


class PendingLogprobs:
    """Entries in order, each released with the first character that its token begins."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, TokenLogprobs, int]] = []

    def add(self, token_id: int, logprobs: TokenLogprobs, text_offset: int) -> None:
        self._entries.append((token_id, logprobs, text_offset))

    def release(self, num_emitted_chars: int) -> tuple[TextLogprobs, ...]:
        """Those whose text is out, now that so many characters of the output are."""
        num_out = sum(offset < num_emitted_chars for _, _, offset in self._entries)
        released = self._entries[:num_out]
        del self._entries[:num_out]
        return tuple(TextLogprobs(*entry, is_in_text=True) for entry in released)

    def release_all(self, *, is_last_in_text: bool) -> tuple[TextLogprobs, ...]:
        """The rest, as nothing follows; the last one is the token that ended the request."""
        last = len(self._entries) - 1
        released, self._entries = self._entries, []
        return tuple(
            TextLogprobs(*entry, is_in_text=is_last_in_text or index < last)
            for index, entry in enumerate(released)
        )

    def release_cut(self) -> tuple[TextLogprobs, ...]:
        """The rest, as a stop string cut their text off."""
        released, self._entries = self._entries, []
        return tuple(TextLogprobs(*entry, is_in_text=False) for entry in released)
