"""`ProcessEngineClient`: the engine in a process of its own, over ZMQ and msgpack.

Owns the child process, the socket to it and the engine's status. Knows no text and no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from refectory_server.config import ApiConfig, ServerConfig
from refectory_server.engine.client import EngineState, EngineStatus
from refectory_server.engine.messages import (
    AbortRequests,
    AddGroup,
    AddRequest,
    EngineFailed,
    EngineReady,
    FromEngine,
    StartupProgress,
    StepOutputs,
    ToEngine,
)
from refectory_server.errors import StartupError
from refectory_server.runner.interface import RunnerFacts

logger = logging.getLogger(__name__)

SECRET_VARIABLES = frozenset({"REFECTORY_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
"""What the engine has no use for: it answers no client and downloads nothing."""
TERMINATE_TIMEOUT_S = 5.0


class ProcessEngineClient:
    """Implements `EngineClient`. Never restarts the engine: its death is the caller's to act on."""

    def __init__(self, config: ServerConfig) -> None:
        # The engine needs nothing of the HTTP side, least of all its keys.
        api = ApiConfig(log_level=config.api.log_level, log_format=config.api.log_format)
        self._config = dataclasses.replace(config, api=api)
        self._status = EngineStatus(EngineState.LOADING)
        self._facts: RunnerFacts | None = None
        self._last_words: EngineFailed | None = None
        self._is_shutting_down = False
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._socket: zmq.asyncio.Socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def status(self) -> EngineStatus:
        return self._status

    @property
    def facts(self) -> RunnerFacts:
        if self._facts is None:
            raise RuntimeError("the engine has no facts before it is ready")
        return self._facts

    @property
    def pid(self) -> int:
        """The engine's process id. Raises `RuntimeError` before `start`."""
        if self._process is None:
            raise RuntimeError("the engine is not started")
        return self._process.pid

    async def start(
        self,
        on_step: Callable[[StepOutputs], None],
        on_status: Callable[[EngineStatus], None],
    ) -> None:
        self._on_step = on_step
        self._on_status = on_status
        try:
            address = self._open_socket()
        except (OSError, zmq.ZMQError) as error:
            raise StartupError(
                f"cannot make the engine's socket in TMPDIR ({os.environ.get('TMPDIR', '/tmp')}), "
                f"which must be a writable folder with a short path: {error}",
                reason="TemporaryFolderUnusable",
            ) from error
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # the working folder is not a place to import from
            "-m",
            "refectory_server.engine.engine_process",
            address,
            str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            env=_engine_environment(),
            # Ctrl-C is for the API process; it stops the engine when its requests are done.
            start_new_session=True,
        )
        await self._send_config(self._process)
        receiver = asyncio.create_task(self._receive())
        self._tasks = [receiver, asyncio.create_task(self._watch(self._process, receiver))]

    def add_request(self, request: AddRequest) -> None:
        self._send(request)

    def add_group(self, requests: list[AddRequest]) -> None:
        self._send(AddGroup(requests))

    def abort(self, request_ids: list[str]) -> None:
        self._send(AbortRequests(request_ids))

    async def shutdown(self) -> None:
        self._is_shutting_down = True
        process = self._process
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), TERMINATE_TIMEOUT_S)
            except TimeoutError:
                # It may be deep in a long step; nobody waits for its result any more.
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._close_socket()

    def _open_socket(self) -> str:
        """The address. Raises `OSError` or `ZMQError`."""
        # mkdtemp's mode 0700 keeps other users of the machine away from the socket.
        self._socket_folder = Path(tempfile.mkdtemp(prefix="refectory-"))
        address = f"ipc://{self._socket_folder}/engine"
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(address)
        return address

    async def _send_config(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        data = self._encoder.encode(self._config)
        process.stdin.write(len(data).to_bytes(4, "big") + data)
        # A child that died this early is reported by `_watch`.
        with contextlib.suppress(ConnectionError):
            await process.stdin.drain()

    def _send(self, message: ToEngine) -> None:
        if self._socket is None or self._status.state is EngineState.DEAD:
            return
        # ZMQ queues without limit, so the future is done at once and nobody has to await it. Not
        # through a plain socket: its send can swallow the signal of a message that has just come,
        # and only the asyncio socket looks for that one afterwards.
        self._socket.send(self._encoder.encode(message))

    async def _receive(self) -> None:
        assert self._socket is not None
        try:
            while True:
                self._take(self._decoder.decode(await self._socket.recv()))
        except Exception as error:
            # Without its messages the engine is lost to us; nobody must wait for it.
            logger.exception("a message of the engine could not be taken in")
            self._die("EngineFailed", f"{type(error).__name__}: {error}")

    def _take(self, message: FromEngine) -> None:
        match message:
            case StepOutputs():
                self._on_step(message)
            case StartupProgress(phase, progress):
                self._remove_socket_folder()
                self._set_status(EngineStatus(EngineState.LOADING, phase, progress))
            case EngineReady(facts, startup_seconds):
                self._facts = facts
                self._set_status(
                    EngineStatus(EngineState.READY, "ready", 1.0, startup_seconds=startup_seconds)
                )
            case EngineFailed():
                self._last_words = message

    async def _watch(
        self, process: asyncio.subprocess.Process, receiver: asyncio.Task[None]
    ) -> None:
        returncode = await process.wait()
        if self._is_shutting_down:
            return
        # What the engine said before it died is already in the socket: let the receiver have it.
        await asyncio.sleep(0.1)
        receiver.cancel()
        reason, message = "EngineDied", f"the engine process {_describe_exit(returncode)}"
        if self._last_words is not None:
            reason, message = self._last_words.reason, self._last_words.message
        self._die(reason, message)

    def _die(self, reason: str, message: str) -> None:
        """The first cause counts."""
        if self._status.state is not EngineState.DEAD:
            self._set_status(EngineStatus(EngineState.DEAD, reason=reason, message=message))

    def _set_status(self, status: EngineStatus) -> None:
        self._status = status
        self._on_status(status)

    def _remove_socket_folder(self) -> None:
        """Once both ends are connected, the file in the file system has done its work."""
        shutil.rmtree(self._socket_folder, ignore_errors=True)

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._socket = None
            self._context.destroy(linger=0)
            self._remove_socket_folder()


def _engine_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES}
    # Of numpy's matrix products none is used: without this it starts a thread a CPU for them.
    return {**kept, "OPENBLAS_NUM_THREADS": "1"}


def _describe_exit(returncode: int) -> str:
    if returncode >= 0:
        return f"exited with code {returncode}"
    return f"was killed by {signal.Signals(-returncode).name}"
