"""`AsyncEngine`: the asyncio façade that the API talks to.

Owns one queue per request, abort on early close, and the text side of a request (through
`InputProcessor` and `OutputProcessor`). Does not know HTTP, nor how requests are batched.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from refectory_server.core.request import FinishReason
from refectory_server.core.stats import RequestTimings, SchedulerStats
from refectory_server.engine.client import EngineStatus
from refectory_server.engine.input_processor import InputProcessor
from refectory_server.engine.messages import StepOutputs
from refectory_server.runner.interface import RunnerFacts
from refectory_server.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class TextDelta:
    """News of one request for the API: what one step added.

    The last one has a `finish_reason`; `num_output_tokens` counts ids so far, those whose text
    is held back or cut off by a stop string included.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int


class EngineObserver(Protocol):
    """Hears what happens, for metrics and logs. Every call is on the event loop."""

    def on_status(self, status: EngineStatus) -> None: ...
    def on_step(self, step: StepOutputs) -> None: ...
    def on_first_token(self, ttft_s: float) -> None: ...
    def on_next_tokens(self, itl_s: float) -> None: ...
    def on_rejected(self, reason: str) -> None: ...
    def on_finished(
        self,
        request_id: str,
        params: SamplingParams,
        finish_reason: FinishReason,
        timings: RequestTimings,
    ) -> None: ...


class AsyncEngine:
    """What `create_app` is given. (Signatures fixed; being filled in.)"""

    @property
    def status(self) -> EngineStatus:
        raise NotImplementedError

    @property
    def facts(self) -> RunnerFacts:
        raise NotImplementedError

    @property
    def stats(self) -> SchedulerStats:
        raise NotImplementedError

    @property
    def input_processor(self) -> InputProcessor:
        """Tokenising, templates, checks. Raises `EngineDead` unless READY."""
        raise NotImplementedError

    @property
    def num_in_flight(self) -> int:
        """Requests given to the engine and not yet ended."""
        raise NotImplementedError

    def seconds_without_progress(self) -> float:
        """0 while nothing is pending, else seconds since the last step (or first pending)."""
        raise NotImplementedError

    def generate(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncIterator[TextDelta]:
        """Deltas until the one with a finish reason. Closing the iterator early aborts.

        Raises before the first delta: `InvalidRequest`, `PromptTooLong`, `QueueFull`,
        `DeadlineExceeded`, `EngineDead`; later only `RequestFailed` and `EngineDead`.
        """
        raise NotImplementedError
