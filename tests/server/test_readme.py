"""README.md's first steps, run as they stand there: `make serve`, each curl, each Python block.

Only the port is another, so that the test needs no free port 8000.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from refectory_server.testing.server_process import READY_TIMEOUT_S, free_port

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
# Both stamps count as up to date: the environment that runs the tests is not to be changed by them.
INSTALLED = ("-o", ".venv/.installed-server", "-o", ".venv/.installed-dev")


def blocks(language: str, beginning: str) -> list[str]:
    """The fenced blocks of a language that begin with a word; at least one."""
    found = [
        block
        for block in re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)
        if block.startswith(beginning)
    ]
    assert found, f"README.md has no {language} block that begins with {beginning!r}"
    return found


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server that `make serve` runs."""
    assert blocks("sh", "make serve\n") == ["make serve\n"]
    port = free_port()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    log = tmp_path_factory.mktemp("serve") / "log"
    with log.open("wb") as output:
        make = subprocess.Popen(
            ["make", "serve", f"PORT={port}", "MODEL=", "ARGS=", *INSTALLED],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_ready(make, port, log)
        yield port
    finally:
        if make.poll() is None:
            os.killpg(make.pid, signal.SIGTERM)
        make.wait()


def wait_until_ready(make: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline and make.poll() is None:
        try:
            if httpx.get(f"http://localhost:{port}/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"`make serve` is not ready:\n{log.read_text()}")


def test_every_request_by_curl_is_answered(port: int) -> None:
    for block in blocks("sh", "curl"):
        command = block.replace(":8000", f":{port}")
        assert command != block
        done = subprocess.run(
            ["bash", "-euc", command], capture_output=True, text=True, timeout=120, check=True
        )
        assert "Paris" in json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_every_python_block_prints_the_answer(port: int) -> None:
    for block in blocks("python", ""):
        program = block.replace(":8000", f":{port}")
        assert program != block
        done = subprocess.run(
            [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert "Paris" in done.stdout
