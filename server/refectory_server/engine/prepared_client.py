"""`PreparedEngineClient`: an engine that can only start when something else is done.

Tells how far the preparation is in the words of an engine that loads. Does not know what is
prepared, nor which client comes out of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable

from refectory_server.engine.client import EngineClient, EngineState, EngineStatus
from refectory_server.engine.messages import AddRequest, StepOutputs
from refectory_server.errors import StartupError
from refectory_server.runner.interface import ReportProgress, RunnerFacts

logger = logging.getLogger(__name__)


class PreparedEngineClient:
    """Implements `EngineClient`, by the client that `prepare` returns.

    `prepare` is given what to report its one phase to; it may raise `StartupError`.
    """

    def __init__(
        self,
        prepare: Callable[[ReportProgress], Awaitable[EngineClient]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prepare = prepare
        self._clock = clock
        self._status = EngineStatus(EngineState.LOADING)
        self._seconds: dict[str, float] = {}
        self._client: EngineClient | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def status(self) -> EngineStatus:
        return self._status

    @property
    def facts(self) -> RunnerFacts:
        return self._prepared.facts

    @property
    def _prepared(self) -> EngineClient:
        if self._client is None:
            raise RuntimeError("the engine is not started")
        return self._client

    async def start(
        self,
        on_step: Callable[[StepOutputs], None],
        on_status: Callable[[EngineStatus], None],
    ) -> None:
        self._on_status = on_status
        self._task = asyncio.create_task(self._prepare_and_start(on_step))

    def add_request(self, request: AddRequest) -> None:
        self._prepared.add_request(request)

    def add_group(self, requests: list[AddRequest]) -> None:
        self._prepared.add_group(requests)

    def abort(self, request_ids: list[str]) -> None:
        self._prepared.abort(request_ids)

    async def shutdown(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._client is not None:
            await self._client.shutdown()

    async def _prepare_and_start(self, on_step: Callable[[StepOutputs], None]) -> None:
        started = self._clock()
        try:
            client = await self._prepare(self._report)
            self._seconds = {self._status.phase: self._clock() - started}
            self._client = client
            await client.start(on_step, self._pass_on)
        except StartupError as error:
            self._die(error.reason, str(error))
        except Exception as error:
            # Nobody awaits this task: whatever it is, the server must not wait for an engine.
            logger.exception("the engine could not be started")
            self._die("EngineFailed", f"{type(error).__name__}: {error}")

    def _report(self, phase: str, progress: float) -> None:
        self._set_status(EngineStatus(EngineState.LOADING, phase, progress))

    def _pass_on(self, status: EngineStatus) -> None:
        """With the preparation's seconds beside the engine's own."""
        if status.startup_seconds is not None:
            seconds = {**self._seconds, **status.startup_seconds}
            status = dataclasses.replace(status, startup_seconds=seconds)
        self._set_status(status)

    def _die(self, reason: str, message: str) -> None:
        self._set_status(EngineStatus(EngineState.DEAD, reason=reason, message=message))

    def _set_status(self, status: EngineStatus) -> None:
        self._status = status
        self._on_status(status)
