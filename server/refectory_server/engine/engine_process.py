"""The engine's own process: load a runner, then step while there is work, block while not.

Started by `ProcessEngineClient` as `python -m refectory_server.engine.engine_process ADDRESS PID`,
PID being its own, with the configuration on standard input. That pipe stays open as a lifeline:
when the API process closes it, this process ends between two steps. When the API process dies,
however it dies, the kernel ends this one at once.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time

import msgspec
import zmq

from refectory_server.config import ServerConfig
from refectory_server.engine.engine_core import EngineCore
from refectory_server.engine.messages import (
    EngineFailed,
    EngineReady,
    FromEngine,
    StartupProgress,
    ToEngine,
)
from refectory_server.errors import StartupError
from refectory_server.log import configure_logging
from refectory_server.parent_death import die_with_parent
from refectory_server.runner.load import load_runner

logger = logging.getLogger("refectory_server.engine.engine_process")  # not "__main__"


class Phases:
    """Start-up phases: reports progress as it happens and keeps the seconds of each."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._current: str | None = None
        self._started = 0.0
        self.seconds: dict[str, float] = {}

    def report(self, phase: str, progress: float) -> None:
        now = time.monotonic()
        if phase != self._current:
            self.finish()
            logger.info("%s", phase.replace("_", " "))
            self._current, self._started = phase, now
        if self._channel.is_abandoned:
            sys.exit(1)  # nobody waits for this engine any more
        self._channel.send(StartupProgress(phase, progress))

    def finish(self) -> None:
        if self._current is not None:
            self.seconds[self._current] = time.monotonic() - self._started


class Channel:
    """The socket to the API process, plus the lifeline that tells when that process is gone."""

    def __init__(self, address: str, lifeline_fd: int) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        # No limit: a step must never wait for the API process to read.
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(address)
        self._lifeline_fd = lifeline_fd
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(lifeline_fd, zmq.POLLIN)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def send(self, message: FromEngine) -> None:
        self._socket.send(self._encoder.encode(message))

    def receive(self, *, block: bool) -> list[ToEngine] | None:
        """What has arrived; waits for something if `block`. None: the API process is gone."""
        if block:
            self._poller.poll()
        if self.is_abandoned:
            return None
        messages: list[ToEngine] = []
        while True:
            try:
                messages.append(self._decoder.decode(self._socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return messages

    @property
    def is_abandoned(self) -> bool:
        """The API process is gone."""
        return self._lifeline_fd in dict(self._poller.poll(0))

    def close(self) -> None:
        # A second for the last words to leave.
        self._context.destroy(linger=1000)


def run_engine(channel: Channel, config: ServerConfig) -> None:
    """Load, then serve until the API process goes away."""
    phases = Phases(channel)
    runner = load_runner(config, phases.report)
    phases.finish()
    core = EngineCore.build(
        runner, config.scheduler, enable_prefix_caching=config.cache.enable_prefix_caching
    )
    logger.info(
        "engine ready: %s",
        ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in phases.seconds.items()),
    )
    # What is loaded stays: keep the collector from walking it again and again.
    gc.collect()
    gc.freeze()
    channel.send(EngineReady(runner.facts, phases.seconds))
    while (messages := channel.receive(block=not core.has_work)) is not None:
        for message in messages:
            core.handle(message)
        if core.has_work:
            scheduler_output = core.schedule()
            if (report := core.report()) is not None:
                channel.send(report)
            channel.send(core.execute(scheduler_output))


def read_config(stream_fd: int) -> ServerConfig:
    """The configuration: a length of 4 bytes, big-endian, then msgpack."""
    with os.fdopen(os.dup(stream_fd), "rb", buffering=0) as stream:
        length = int.from_bytes(_read_exactly(stream.fileno(), 4), "big")
        return msgspec.msgpack.decode(_read_exactly(stream.fileno(), length), type=ServerConfig)


def _read_exactly(fd: int, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = os.read(fd, length - len(data))
        if not piece:
            raise EOFError(f"configuration ended after {len(data)} of {length} bytes")
        data += piece
    return data


def main(address: str, api_pid: int) -> int:
    die_with_parent(api_pid)
    # Some managers signal every process of a service; when this one ends, the API process decides.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    lifeline_fd = sys.stdin.fileno()
    config = read_config(lifeline_fd)
    configure_logging(config.api.log_level, config.api.log_format)
    channel = Channel(address, lifeline_fd)
    try:
        run_engine(channel, config)
    except StartupError as error:
        channel.send(EngineFailed(error.reason, str(error)))
        return 1
    except Exception as error:
        # The process boundary: whatever it is, it ends this engine and must be told.
        logger.exception("the engine failed")
        channel.send(EngineFailed("EngineFailed", f"{type(error).__name__}: {error}"))
        return 1
    finally:
        channel.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
