"""`EngineObserver`: who hears what happens in the engine. Knows no metrics library and no HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from refectory_server.core.request import FinishReason
from refectory_server.core.stats import RequestTimings
from refectory_server.engine.client import EngineStatus
from refectory_server.engine.messages import StepOutputs
from refectory_server.sampling_params import SamplingParams


class EngineObserver(Protocol):
    """Hears what happens, for metrics and logs. Every call is on the event loop."""

    def on_status(self, status: EngineStatus) -> None: ...
    def on_step(self, step: StepOutputs) -> None: ...
    def on_first_token(
        self, ttft_s: float, *, num_prompt_tokens: int, num_cached_tokens: int
    ) -> None: ...
    def on_next_tokens(self, itl_s: float) -> None: ...
    def on_rejected(self, reason: str) -> None: ...
    def on_finished(
        self,
        request_id: str,
        params: SamplingParams,
        finish_reason: FinishReason,
        timings: RequestTimings,
    ) -> None:
        """Of one choice."""
        ...

    def on_all_choices_finished(self, timings: Sequence[RequestTimings]) -> None:
        """Of one prompt."""
        ...
