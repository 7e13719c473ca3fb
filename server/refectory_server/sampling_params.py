"""`SamplingParams`: how one request chooses its tokens, validated at construction.

Knows no tensors and no HTTP. The API, `LLM` and the engine's messages all carry this type.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from refectory_server.errors import InvalidRequest

MAX_CHOICES = 128
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 256
"""Bounds on what each token is compared with, in threads that all requests share."""
MAX_LOGIT_BIASES = 1024
"""As in vLLM (`MAX_NUM_LOGIT_BIAS_TOKENS`); each choice of a request carries its own copy."""
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 128
"""Bounds on what is encoded at arrival and compared with the output's end at each token."""
MAX_SEED = 2**63 - 1
MAX_INT32 = 2**31 - 1
_NUMBERS: dict[str, type[int] | type[float]] = {
    **dict.fromkeys(("n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs"), int),
    **dict.fromkeys(("temperature", "top_p", "min_p"), float),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "repetition_penalty"), float),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling of one request.

    Sequences become tuples; a lone string for `stop` is one stop string. Raises `InvalidRequest`,
    naming field, value and what is allowed, for anything else or out of range.
    """

    n: int = 1
    """Choices for one prompt, 1 to 128. Choice i is drawn with seed + i."""
    temperature: float = 1.0
    """0 means greedy; the scale of the logits otherwise, 0 to 2."""
    top_p: float = 1.0
    """Smallest set of tokens whose probability reaches this share, (0, 1]."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all (-1 is accepted as the same)."""
    min_p: float = 0.0
    """Drop tokens below this share of the most probable one's probability, [0, 1]."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token that the output has, [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted once for each time that the output has the token, [-2, 2]."""
    repetition_penalty: float = 1.0
    """Divides the logits above 0, and multiplies the others, of every token that prompt or output
    has (Keskar et al. 2019, "CTRL", section 4.1), [0.01, 100]."""
    logit_bias: dict[int, float] = field(default_factory=dict, hash=False)
    """Token id to what is added to its logit, [-100, 100]; at most 1024 of them."""
    allowed_token_ids: Sequence[int] = ()
    """The only tokens that may be chosen; empty: all."""
    bad_words: Sequence[str] = ()
    """Words that the output may not hold; of one of several tokens its last is never chosen after
    the others. Another spelling, a capital for one, is another word."""
    bad_words_token_ids: Sequence[Sequence[int]] = ()
    """Such words as token ids; whoever knows the tokenizer adds those of `bad_words`."""
    seed: int | None = None
    """Key of the counter-based random numbers. Drawn at arrival where None."""
    max_tokens: int | None = None
    """Output tokens at most; None: as many as context and KV cache hold."""
    min_tokens: int = 0
    """Output tokens before anything but `max_tokens` may end the request."""
    stop: Sequence[str] = ()
    """Strings that end the text; they are not part of it."""
    include_stop_str_in_output: bool = False
    """They, and the text of an end token, are part of it all the same."""
    stop_token_ids: Sequence[int] = ()
    """Token ids that end the request, like the model's own end tokens."""
    ignore_eos: bool = False
    """Go on past the model's end tokens (benchmarks)."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    logprobs: int | None = None
    """Tell each token's log-probability, and so many of the most probable tokens'; None: none.
    They are the model's own, before penalties and temperature."""

    def __post_init__(self) -> None:
        for name in ("stop", "bad_words"):
            object.__setattr__(self, name, _as_strings(name, getattr(self, name)))
        for name in ("allowed_token_ids", "stop_token_ids"):
            object.__setattr__(self, name, as_token_ids(name, getattr(self, name)))
        bad_ids = tuple(as_token_ids("bad_words_token_ids", i) for i in self.bad_words_token_ids)
        object.__setattr__(self, "bad_words_token_ids", bad_ids)
        _check_int("n", self.n, 1, MAX_CHOICES)
        _check_number("temperature", self.temperature, 0.0, 2.0)
        _check_number("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_int("top_k", self.top_k, -1, MAX_INT32)
        _check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidRequest(
                f"logit_bias is {self.logit_bias!r:.80}; it must be a dict of token ids and "
                "numbers",
                field="logit_bias",
            )
        if len(self.logit_bias) > MAX_LOGIT_BIASES:
            raise InvalidRequest(
                f"logit_bias has {len(self.logit_bias)} tokens; "
                f"at most {MAX_LOGIT_BIASES} are allowed",
                field="logit_bias",
            )
        for token_id, bias in self.logit_bias.items():
            _check_int("a token id of logit_bias", token_id, 0, MAX_INT32, field="logit_bias")
            _check_number(f"logit_bias of token {token_id}", bias, -100.0, 100.0, "logit_bias")
        _check_ids("allowed_token_ids", self.allowed_token_ids)
        if self.seed is not None:
            _check_int("seed", self.seed, -MAX_SEED - 1, MAX_SEED)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, MAX_INT32)
        _check_int("min_tokens", self.min_tokens, 0, MAX_INT32)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens is {self.min_tokens}; allowed is [0, {self.max_tokens}]: max_tokens "
                f"is {self.max_tokens}",
                field="min_tokens",
            )
        _check_strings("stop", self.stop, MAX_STOP_STRINGS, MAX_STOP_CHARS)
        _check_strings("bad_words", self.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_CHARS)
        for token_ids in self.bad_words_token_ids:
            _check_ids("bad_words_token_ids", token_ids)
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest(
                f"stop_token_ids has {len(self.stop_token_ids)} ids; "
                f"at most {MAX_STOP_TOKEN_IDS} are allowed",
                field="stop_token_ids",
            )
        _check_ids("stop_token_ids", self.stop_token_ids)
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, MAX_INT32)
        # Numbers of numpy are taken, but neither messages nor C structs take all of them.
        for name, plain in _NUMBERS.items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, plain(value))

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether a token's logit depends on the tokens before it."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )


def _check_number(
    name: str,
    value: Any,
    low: float,
    high: float,
    field: str | None = None,
    *,
    low_open: bool = False,
) -> None:
    """`field` is the request's field where `name` says more than that."""
    is_number = isinstance(value, Real)
    if not is_number:
        raise InvalidRequest(f"{name} is {value!r:.80}; it must be a number", field=field or name)
    above_low = value > low if low_open else value >= low
    if not (above_low and value <= high):  # neither is true of NaN
        bracket = "(" if low_open else "["
        raise InvalidRequest(
            f"{name} is {value}; allowed is {bracket}{low:g}, {high:g}]", field=field or name
        )


def _check_int(name: str, value: Any, low: int, high: int, field: str | None = None) -> None:
    is_integer = isinstance(value, Integral)
    if not is_integer:
        raise InvalidRequest(f"{name} is {value!r:.80}; it must be an integer", field=field or name)
    if not low <= value <= high:
        raise InvalidRequest(f"{name} is {value}; allowed is [{low}, {high}]", field=field or name)


def as_token_ids(field: str, value: Sequence[int]) -> tuple[int, ...]:
    """Raises `InvalidRequest` for anything but integers, of whatever sequence or array."""
    try:
        return tuple(map(operator.index, value))
    except TypeError:
        raise InvalidRequest(
            f"{field} is {value!r:.80}; it must be a list of integers", field=field
        ) from None


def _as_strings(field: str, value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise InvalidRequest(
            f"{field} is {value!r:.80}; it must be a string or a list of strings", field=field
        )
    return tuple(value)


def _check_strings(field: str, strings: Sequence[str], max_strings: int, max_chars: int) -> None:
    if len(strings) > max_strings:
        raise InvalidRequest(
            f"{field} has {len(strings)} strings; at most {max_strings} are allowed", field=field
        )
    if "" in strings:
        raise InvalidRequest(f"{field} holds an empty string; each needs a character", field=field)
    longest = max(map(len, strings), default=0)
    if longest > max_chars:
        raise InvalidRequest(
            f"{field} holds a string of {longest} characters; at most {max_chars} are allowed",
            field=field,
        )


def _check_ids(field: str, token_ids: Sequence[int]) -> None:
    for token_id in token_ids:
        _check_int(field, token_id, 0, MAX_INT32)
