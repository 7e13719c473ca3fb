"""`InProcessEngineClient`: the engine inside this process, for embedding and for tests.

Each step runs in a worker thread, so the event loop stays free; messages are taken between steps,
exactly as the engine process does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from refectory_server.engine.client import EngineState, EngineStatus
from refectory_server.engine.engine_core import EngineCore
from refectory_server.engine.messages import (
    AbortRequests,
    AddGroup,
    AddRequest,
    StepOutputs,
    ToEngine,
)
from refectory_server.runner.interface import RunnerFacts

logger = logging.getLogger(__name__)


class InProcessEngineClient:
    """Implements `EngineClient` over an `EngineCore` that is already built."""

    def __init__(self, core: EngineCore, facts: RunnerFacts) -> None:
        self._core = core
        self._facts = facts
        self._status = EngineStatus(EngineState.LOADING)
        self._inbox: list[ToEngine] = []
        self._wake_up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def status(self) -> EngineStatus:
        return self._status

    @property
    def facts(self) -> RunnerFacts:
        return self._facts

    async def start(
        self,
        on_step: Callable[[StepOutputs], None],
        on_status: Callable[[EngineStatus], None],
    ) -> None:
        self._on_step = on_step
        self._on_status = on_status
        self._task = asyncio.create_task(self._run())
        self._set_status(EngineStatus(EngineState.READY, "ready", 1.0, startup_seconds={}))

    def add_request(self, request: AddRequest) -> None:
        self._send(request)

    def add_group(self, requests: list[AddRequest]) -> None:
        self._send(AddGroup(requests))

    def abort(self, request_ids: list[str]) -> None:
        self._send(AbortRequests(request_ids))

    async def shutdown(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def _send(self, message: ToEngine) -> None:
        self._inbox.append(message)
        self._wake_up.set()

    async def _run(self) -> None:
        try:
            while True:
                messages, self._inbox = self._inbox, []
                self._wake_up.clear()
                for message in messages:
                    self._core.handle(message)
                if self._core.has_work:
                    scheduler_output = self._core.schedule()
                    if (report := self._core.report()) is not None:
                        self._on_step(report)
                    self._on_step(await asyncio.to_thread(self._core.execute, scheduler_output))
                else:
                    await self._wake_up.wait()
        except Exception as error:
            # The engine's boundary, as in the engine process: whatever it is, it must be told.
            logger.exception("the engine failed")
            message_text = f"{type(error).__name__}: {error}"
            self._set_status(
                EngineStatus(EngineState.DEAD, reason="EngineFailed", message=message_text)
            )

    def _set_status(self, status: EngineStatus) -> None:
        self._status = status
        self._on_status(status)
