"""`Point`: one amount of work, and the prompts that are it. Needs the standard library alone."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

TOKEN_IDS = range(1000, 40_000)
"""Ordinary tokens in every model that is measured: no control tokens, no vocabulary's end."""
SEED = 0


@dataclass(frozen=True, slots=True)
class Point:
    """`num_prompts` prompts of `input_len` tokens, `output_len` tokens generated for each."""

    num_prompts: int
    input_len: int
    output_len: int

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed is 1 or more")

    def __str__(self) -> str:
        return f"{self.num_prompts}x{self.input_len}/{self.output_len}"

    @property
    def num_output_tokens(self) -> int:
        return self.num_prompts * self.output_len

    @property
    def max_len(self) -> int:
        return self.input_len + self.output_len

    def prompts(self) -> list[list[int]]:
        """Token ids, the same for every engine and in every round."""
        drawn = random.Random(SEED)
        return [
            [drawn.choice(TOKEN_IDS) for _ in range(self.input_len)]
            for _ in range(self.num_prompts)
        ]


def parse_point(text: str) -> Point:
    """`32x128/128`: prompts x input / output. Raises `ValueError`."""
    match = re.fullmatch(r"(\d+)x(\d+)/(\d+)", text)
    if match is None:
        raise ValueError(f"a point is {text!r}; allowed is PROMPTSxINPUT/OUTPUT, as in 32x128/128")
    return Point(*map(int, match.groups()))
