"""`EngineClient`: one engine as the API side sees it, whatever process it lives in.

Owns the protocol and the engine's states. Knows no text, no HTTP, no transport.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from refectory_server.engine.messages import AddRequest, StepOutputs
from refectory_server.runner.interface import RunnerFacts


class EngineState(enum.StrEnum):
    LOADING = "loading"
    READY = "ready"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """State plus what explains it: the phase while loading, the cause when dead."""

    state: EngineState
    phase: str = "starting"
    progress: float = 0.0
    reason: str = ""
    message: str = ""
    startup_seconds: dict[str, float] | None = None


class EngineClient(Protocol):
    """Sends requests, hands every step's message to one listener."""

    @property
    def status(self) -> EngineStatus: ...

    @property
    def facts(self) -> RunnerFacts:
        """Raises `RuntimeError` before the engine is READY."""
        ...

    async def start(
        self,
        on_step: Callable[[StepOutputs], None],
        on_status: Callable[[EngineStatus], None],
    ) -> None:
        """Start the engine and return at once; `on_status` tells when it is READY or DEAD.

        Both callbacks run on the event loop that called `start`.
        """
        ...

    def add_request(self, request: AddRequest) -> None: ...

    def add_group(self, requests: list[AddRequest]) -> None:
        """All are taken or none."""
        ...

    def abort(self, request_ids: list[str]) -> None: ...

    async def shutdown(self) -> None:
        """Stop the engine; safe to call twice and when it is dead."""
        ...
