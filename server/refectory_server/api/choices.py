"""A request's choices as they come from the engine: text, counts and ends, all of them together.

Knows the engine's deltas and OpenAI's words for an end; no prompts, no HTTP, no shapes of answers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from refectory_server.api.responses import FinishWord, PromptTokensDetails, Usage
from refectory_server.core.request import FinishReason
from refectory_server.engine.async_engine import TextDelta
from refectory_server.engine.text_logprobs import TextLogprobs
from refectory_server.errors import RequestFailed

Batches = AsyncGenerator[list[TextDelta], None]
"""Deltas of several choices at a time, as `AsyncEngine.generate_all` gives them."""


@dataclass(slots=True)
class WholeChoice:
    """A choice that has ended."""

    index: int
    finish_word: FinishWord = "stop"
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TextLogprobs] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    choices: list[WholeChoice]
    usage: Usage


class Tally:
    """Counts over all choices of `num_prompts` prompts with `n` choices each."""

    def __init__(self, num_prompts: int, n: int) -> None:
        self._n = n
        self._num_choices = num_prompts * n
        self._last: dict[int, TextDelta] = {}
        self._num_finished = 0

    @property
    def num_choices(self) -> int:
        return self._num_choices

    @property
    def is_complete(self) -> bool:
        return self._num_finished == self._num_choices

    def add(self, delta: TextDelta) -> None:
        self._last[delta.index] = delta
        self._num_finished += delta.finish_reason is not None

    def usage(self) -> Usage:
        """Each prompt counts once, whatever its choices; so do its cached tokens."""
        firsts = [delta for index, delta in self._last.items() if index % self._n == 0]
        num_prompt_tokens = sum(delta.num_prompt_tokens for delta in firsts)
        num_output_tokens = sum(delta.num_output_tokens for delta in self._last.values())
        num_cached_tokens = sum(delta.num_cached_tokens for delta in firsts)
        return Usage(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=num_output_tokens,
            total_tokens=num_prompt_tokens + num_output_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached_tokens),
            num_preemptions=sum(delta.num_preemptions for delta in self._last.values()),
        )


async def collect(batches: Batches, tally: Tally) -> WholeAnswer:
    """Read all choices to their ends; closes the generator in every case."""
    choices = [WholeChoice(index) for index in range(tally.num_choices)]
    async with aclosing(batches):
        async for deltas in batches:
            for delta in deltas:
                tally.add(delta)
                choice = choices[delta.index]
                choice.pieces.append(delta.text)
                choice.logprobs += delta.logprobs
                if delta.finish_reason is not None:
                    choice.finish_word = finish_word(delta)
    if not tally.is_complete:
        raise RequestFailed("the generation ended without a finish reason")
    return WholeAnswer(choices, tally.usage())


def finish_word(delta: TextDelta) -> FinishWord:
    """The API's word for the end. Raises `RequestFailed` for an end that is no answer."""
    match delta.finish_reason:
        case FinishReason.STOP:
            return "stop"
        case FinishReason.LENGTH:
            return "length"
        case reason:
            raise RequestFailed(f"the request ended early: {reason}")
