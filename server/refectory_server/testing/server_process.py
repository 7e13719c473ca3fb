"""`refectory serve` as a real process on a free port, for tests of the whole program."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx

READY_TIMEOUT_S = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """A running server; its output is kept for the test to read."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
        self._process = process
        self._log = log
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    @property
    def output(self) -> str:
        """Everything the server wrote to standard output and error so far."""
        return Path(self._log.name).read_text()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def engine_pid(self) -> int:
        """The engine's process: the child that runs its module."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        for child in children:
            if b"engine_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        raise RuntimeError(f"no engine among the children {children}")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            if not self.is_running:
                raise RuntimeError(f"the server ended early:\n{self.output}")
            if self.ready_status() == 200:
                return
            time.sleep(0.05)
        raise TimeoutError(f"not ready after {READY_TIMEOUT_S} s:\n{self.output}")

    def ready_status(self) -> int | None:
        """The status of /ready; None where nobody listens."""
        try:
            return httpx.get(f"{self.url}/ready", timeout=5.0).status_code
        except httpx.TransportError:
            return None

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """The exit code. Raises `subprocess.TimeoutExpired`."""
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        if self.is_running:
            self._process.kill()
        self._process.wait()


@contextmanager
def server_process(
    *args: str, port: int | None = None, env: dict[str, str] | None = None
) -> Iterator[ServerProcess]:
    """Run `refectory serve *args`; killed at exit if it is still there.

    env: variables beside those of this process
    """
    port = port or free_port()
    command = [
        str(Path(sys.executable).with_name("refectory")),
        "serve",
        *args,
        "--host=127.0.0.1",
        f"--port={port}",
    ]
    with tempfile.NamedTemporaryFile(prefix="refectory-log-") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
        )
        server = ServerProcess(process, port, log)
        try:
            yield server
        finally:
            server.kill()
