"""`SamplingParams`: how one request chooses its tokens, validated at construction.

Knows no tensors and no HTTP. The API, `LLM` and the engine's messages all carry this type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from refectory_server.errors import InvalidRequest

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 256
"""Bounds on what each token is compared with, in threads that all requests share."""
MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling of one request.

    Raises `InvalidRequest`, naming field, value and range, for anything out of range.
    """

    temperature: float = 1.0
    """0 means greedy; the scale of the logits otherwise, 0 to 2."""
    top_p: float = 1.0
    """Smallest set of tokens whose probability reaches this share, (0, 1]."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all (-1 is accepted as the same)."""
    min_p: float = 0.0
    """Drop tokens below this share of the most probable one's probability, [0, 1]."""
    seed: int | None = None
    """Key of the counter-based random numbers. Drawn at arrival where None."""
    max_tokens: int | None = None
    """Output tokens at most; None: as many as context and KV cache hold."""
    stop: tuple[str, ...] = ()
    """Strings that end the text; they are not part of it."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the request, like the model's own end tokens."""
    ignore_eos: bool = False
    """Go on past the model's end tokens (benchmarks)."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, 0.0, 2.0)
        _check_number("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_int("top_k", self.top_k, -1, 2**31 - 1)
        if self.seed is not None:
            _check_int("seed", self.seed, -MAX_SEED - 1, MAX_SEED)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, 2**31 - 1)
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(
                f"stop has {len(self.stop)} strings; at most {MAX_STOP_STRINGS} are allowed",
                field="stop",
            )
        if "" in self.stop:
            raise InvalidRequest("stop holds an empty string; each needs a character", field="stop")
        longest = max(map(len, self.stop), default=0)
        if longest > MAX_STOP_CHARS:
            raise InvalidRequest(
                f"stop holds a string of {longest} characters; "
                f"at most {MAX_STOP_CHARS} are allowed",
                field="stop",
            )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest(
                f"stop_token_ids has {len(self.stop_token_ids)} ids; "
                f"at most {MAX_STOP_TOKEN_IDS} are allowed",
                field="stop_token_ids",
            )
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, 0, 2**31 - 1)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


def _check_number(
    field: str, value: float, low: float, high: float, *, low_open: bool = False
) -> None:
    above_low = value > low if low_open else value >= low
    if not (math.isfinite(value) and above_low and value <= high):
        bracket = "(" if low_open else "["
        raise InvalidRequest(
            f"{field} is {value}; allowed is {bracket}{low:g}, {high:g}]", field=field
        )


def _check_int(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidRequest(f"{field} is {value}; allowed is [{low}, {high}]", field=field)
