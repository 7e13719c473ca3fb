"""What starts and ends the server: signals to all of its processes, streams that are closed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

import refectory_server.cli.run_server
from refectory_server.cli.main import main
from refectory_server.config import ServerConfig
from refectory_server.testing.process_usage import is_alive
from refectory_server.testing.server_process import ServerProcess, free_port, server_process


def test_a_sigterm_to_every_process_still_drains(tmp_path: Path) -> None:
    profile = tmp_path / "slow.yaml"
    profile.write_text(
        "{description: slow, model: slow, num_blocks: 64, max_model_len: 512,"
        " kv_bytes_per_token: 1, step_seconds: {fixed: 0.01}}"
    )
    with server_process(f"--simulate={profile}") as server:
        server.wait_until_ready()
        body = {"prompt": "hi", "max_tokens": 100, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as sse:
            lines = sse.iter_lines()
            next(lines)
            os.kill(server.engine_pid, signal.SIGTERM)
            server.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.wait(30) == 0


@pytest.mark.parametrize("what_the_engine_does", ["waits", "computes", "is stopped"])
def test_a_killed_server_takes_its_engine_with_it(
    tmp_path: Path, what_the_engine_does: str
) -> None:
    profile = tmp_path / "endless.yaml"
    profile.write_text(
        "{description: a step that never ends, model: endless, num_blocks: 64, max_model_len: 512,"
        " kv_bytes_per_token: 1, step_seconds: {fixed: 3600}}"
    )
    with server_process(f"--simulate={profile}") as server:
        server.wait_until_ready()
        engine_pid = server.engine_pid
        if what_the_engine_does == "computes":
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{server.url}/v1/completions", json={"prompt": "hi"}, timeout=0.5)
            # The client's leaving is a message, and the engine does not read it any more.
            assert httpx.get(f"{server.url}/load").json()["running"] == 1
        if what_the_engine_does == "is stopped":
            os.kill(engine_pid, signal.SIGSTOP)
        server.send_signal(signal.SIGKILL)
        assert server.wait(10) == -signal.SIGKILL
        deadline = time.monotonic() + 10
        while is_alive(engine_pid):
            assert time.monotonic() < deadline, "the engine lives on"
            time.sleep(0.02)


def test_an_engine_whose_server_is_gone_does_not_start() -> None:
    command = [sys.executable, "-P", "-m", "refectory_server.engine.engine_process", "ipc://x"]
    nobody = "4194305"  # above the highest that Linux gives
    done = subprocess.run([*command, nobody], stdin=subprocess.PIPE, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_closed_standard_streams_are_no_obstacle() -> None:
    port = free_port()
    refectory = Path(sys.executable).with_name("refectory")
    command = [str(refectory), "serve", "--simulate=instant", f"--port={port}"]
    process = subprocess.Popen(["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command])
    with tempfile.NamedTemporaryFile() as nothing:
        server = ServerProcess(process, port, nothing)
        try:
            server.wait_until_ready()
            body = {"prompt": "hi", "max_tokens": 2}
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
            assert answer.json()["usage"]["completion_tokens"] == 2
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0
        finally:
            server.kill()


def test_sigint_before_the_server_listens_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(config: ServerConfig) -> int:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(60)
        return 0

    monkeypatch.setattr(refectory_server.cli.run_server, "run_server", interrupted)
    assert CliRunner().invoke(main, ["serve", "--simulate=instant"]).exit_code == 130


def test_the_engine_process_gets_no_secrets() -> None:
    env = {"REFECTORY_API_KEY": "a-key", "HF_TOKEN": "a-token", "REFECTORY_TEST_MARK": "here"}
    with server_process("--simulate=instant", env=env) as server:
        server.wait_until_ready()
        variables = Path(f"/proc/{server.engine_pid}/environ").read_bytes()
        assert b"REFECTORY_TEST_MARK=here" in variables
        assert b"a-key" not in variables
        assert b"a-token" not in variables
        assert httpx.get(f"{server.url}/v1/models").status_code == 401
