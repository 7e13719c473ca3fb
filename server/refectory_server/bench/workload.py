"""`PlannedRequest`: what will be asked for, and when. Pure; knows no HTTP."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

# Each is one token, its blank included, in the vocabularies of common models.
WORDS = (
    "about", "after", "again", "air", "all", "also", "and", "another", "any", "are", "around",
    "away", "back", "because", "been", "before", "below", "between", "both", "but", "came", "can",
    "come", "could", "day", "did", "different", "does", "down", "each", "end", "even", "every",
    "few", "find", "first", "for", "found", "from", "get", "give", "good", "great", "had", "hand",
    "has", "have", "help", "her", "here", "high", "him", "his", "home", "house", "how", "its",
    "just", "keep", "know", "land", "large", "last", "left", "life", "light", "line", "little",
    "long", "look",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    prompt: str | list[int]
    """Text or token ids."""
    max_tokens: int
    send_at_s: float = 0.0
    """Not earlier than this after the start of the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomWorkload:
    """Prompts of random words, which no prefix cache knows. The same for the same seed."""

    num_prompts: int
    input_len: int
    """Words: about as many tokens; what the server counted is in the results."""
    output_len: int
    range_ratio: float = 0.0
    """Lengths are drawn evenly from [length x (1 - ratio), length x (1 + ratio)]."""
    request_rate: float = math.inf
    """Arrivals a second; inf: all at once."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of the intervals; 1: a Poisson process."""
    seed: int = 0

    def requests(self) -> list[PlannedRequest]:
        drawn = random.Random(self.seed)
        arrivals = self._arrivals(random.Random(self.seed + 1))
        return [
            PlannedRequest(
                " ".join(drawn.choices(WORDS, k=self._length(drawn, self.input_len))),
                self._length(drawn, self.output_len),
                arrival,
            )
            for arrival in itertools.islice(arrivals, self.num_prompts)
        ]

    def _length(self, drawn: random.Random, length: int) -> int:
        low, high = (round(length * (1 + sign * self.range_ratio)) for sign in (-1, 1))
        return max(1, drawn.randint(low, high))

    def _arrivals(self, drawn: random.Random) -> Iterator[float]:
        """Times from 0 on."""
        arrival = 0.0
        while True:
            yield arrival
            if math.isfinite(self.request_rate):
                scale = 1 / (self.request_rate * self.burstiness)
                arrival += drawn.gammavariate(self.burstiness, scale)
