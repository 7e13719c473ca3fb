"""`EngineProcess`: one loaded engine in its own environment, stopped while others are measured.

Owns the process. Knows the JSON lines of `protocol.py` and nothing of what an engine does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from side_by_side.catalogue import module_path
from side_by_side.point import Point
from side_by_side.protocol import Settings

ANSWER_TIMEOUT_S = 900.0
CLOSE_TIMEOUT_S = 20.0
MAX_LAST_WORDS = 400
FOLDER = re.compile(r"(?<!\S)\S?/\S+/")
"""Of a path: reports are published, and say nothing of the machine's folders."""
PACKAGE_ROOT = Path(__file__).parents[1]


class EngineFailed(Exception):
    """The engine did not load, did not answer, or answered with an error."""


class EngineProcess:
    def __init__(self, process: subprocess.Popen[str], log: IO[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._requests, self._answers = process.stdin, process.stdout
        self._log = log
        self.facts: dict[str, Any] = self._read_answer()
        """`load_s` and `versions`."""
        self._signal(signal.SIGSTOP)

    def measure(self, point: Point) -> dict[str, Any]:
        """The answer of `protocol.run_engine` to one point. Raises `EngineFailed`."""
        self._signal(signal.SIGCONT)
        try:
            print(json.dumps(asdict(point)), file=self._requests, flush=True)
            return self._read_answer()
        except BrokenPipeError:
            raise EngineFailed(self._last_words()) from None
        finally:
            self._signal(signal.SIGSTOP)

    def _read_answer(self) -> dict[str, Any]:
        watchdog = threading.Timer(ANSWER_TIMEOUT_S, self._signal, [signal.SIGKILL])
        watchdog.start()
        try:
            line = self._answers.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise EngineFailed(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineFailed(answer["error"])
        return answer

    def _signal(self, number: signal.Signals) -> None:
        signal_group(self._process, number)

    def _last_words(self) -> str:
        text = FOLDER.sub("", Path(self._log.name).read_text(errors="replace"))
        return " ".join(text.split())[-MAX_LAST_WORDS:] or "it ended without a word"


@contextmanager
def engine_process(module: str, python: Path, settings: Settings) -> Iterator[EngineProcess]:
    """Load an engine; at the end nothing of it is left. Raises `EngineFailed`."""
    with tempfile.NamedTemporaryFile("w", prefix=f"{module}-log-") as log:
        process = subprocess.Popen(
            [str(python), "-P", "-m", module_path(module), json.dumps(asdict(settings))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT), "HF_HUB_OFFLINE": "1"},
            start_new_session=True,
        )
        # Kills the group once this process is done with it or dead: what is stopped by SIGSTOP
        # would never notice the end of its standard input.
        guard = subprocess.Popen(
            ["sh", "-c", "read _; kill -s KILL -- -$0", str(process.pid)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with guard, process:
            try:
                yield EngineProcess(process, log)
            finally:
                _close(process)
                guard.communicate()


def _close(process: subprocess.Popen[str]) -> None:
    """Politely: an engine has workers and servers of its own to end."""
    signal_group(process, signal.SIGCONT)
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(CLOSE_TIMEOUT_S)


def signal_group(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """To the whole group, so to an engine's workers too."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
