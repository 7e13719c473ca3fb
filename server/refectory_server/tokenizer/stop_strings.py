"""`StopStrings`: finds the first stop string in a text that comes in pieces.

Owns the characters that may yet turn out to be part of one. Knows no tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """Aho & Corasick's automaton (CACM 18(6), 1975): a few dictionary look-ups a character.

    The match is the one that ends first; of those that end together, the longest. So it does not
    depend on how the text is cut into pieces, and no part of any stop string is ever emitted.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise ValueError("an empty stop string would match everywhere")
        # A node is a prefix of a stop string; node 0 the empty one.
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._fallback = [0] * len(self._next)
        self._link()
        self._node = 0
        self._held = ""
        self._matched: str | None = None

    def append(self, text: str, *, may_match: bool = True) -> tuple[str, str | None]:
        """(text to emit, the stop string that has just been completed or None).

        Nothing may follow a match: what comes after it, in this piece too, is dropped. Held back is
        exactly the longest end of the text that begins a stop string. Those that end in a piece
        with `may_match` false do not count.
        """
        if self._matched is not None:
            raise RuntimeError(f"the text already ended at the stop string {self._matched!r}")
        node = self._node
        if not node and self._next[0].keys().isdisjoint(text):
            return text, None
        for index, char in enumerate(text):
            node = self._step(node, char)
            matched = self._match[node] if may_match else None
            if matched is not None:
                seen = self._held + text[: index + 1]
                self._held, self._matched = "", matched
                return seen[: -len(matched)], matched
        self._node = node
        seen = self._held + text
        num_emitted = len(seen) - self._depth[node]
        self._held = seen[num_emitted:]
        return seen[:num_emitted], None

    def flush(self) -> str:
        """What is held back, now that nothing follows."""
        held, self._held, self._node = self._held, "", 0
        return held

    def _step(self, node: int, char: str) -> int:
        while node and char not in self._next[node]:
            node = self._fallback[node]
        return self._next[node].get(char, 0)

    def _insert(self, stop: str) -> None:
        node = 0
        for char in stop:
            if char not in self._next[node]:
                self._next[node][char] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[node] + 1)
                self._match.append(None)
            node = self._next[node][char]
        self._match[node] = stop

    def _link(self) -> None:
        """Each node falls back to its longest proper suffix that is also a node; breadth first, so
        that the shorter ones are ready. A node without a match of its own inherits the longest.
        """
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            if self._match[node] is None:
                self._match[node] = self._match[self._fallback[node]]
            for char, child in self._next[node].items():
                self._fallback[child] = self._step(self._fallback[node], char)
                queue.append(child)
