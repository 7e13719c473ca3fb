"""The termination message: its form, its limits, and every fatal end of the program."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

import refectory_server.cli.termination
from refectory_server.cli.main import Program, main
from refectory_server.cli.termination import MAX_BYTES, TerminationLog, termination_message
from refectory_server.errors import EngineDead, StartupError
from refectory_server.testing.server_process import free_port, server_process

FAILING = """
description: a test
model: tiny
num_blocks: 64
max_model_len: 512
kv_bytes_per_token: 1024
step_seconds: {}
faults: {fail_load: "no such weights: größe"}
"""


@given(st.text(max_size=3000), st.text(st.characters(), max_size=10))
def test_a_message_is_short_json_whose_end_is_cut(message: str, reason: str) -> None:
    data = termination_message(reason, message)
    assert len(data) < MAX_BYTES
    parsed = json.loads(data)
    assert parsed["reason"] == reason.encode(errors="replace").decode()
    readable = message.encode(errors="replace").decode()
    assert readable.startswith(parsed["message"])
    if len(json.dumps(readable, ensure_ascii=False).encode()) < 1900:
        assert parsed["message"] == readable


def test_a_long_message_loses_no_more_than_it_must() -> None:
    parsed = json.loads(termination_message("R", "ü" * 5000))
    num_other_bytes = len(b'{"reason": "R", "message": ""}')
    assert parsed["message"] == "ü" * ((MAX_BYTES - 1 - num_other_bytes) // 2)


@pytest.mark.parametrize("args", [["--termination-log=PATH"], ["--termination_log", "PATH"]])
def test_the_flag_is_found_in_a_command_line_that_is_wrong(tmp_path: Path, args: list[str]) -> None:
    path = tmp_path / "log"
    given_args = [arg.replace("PATH", str(path)) for arg in args]
    TerminationLog.of_command(["--nonsense", *given_args], {}).write("R", "m")
    assert json.loads(path.read_text()) == {"reason": "R", "message": "m"}


def test_keys_and_tokens_never_get_into_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    environment = {
        "REFECTORY_TERMINATION_LOG": str(path),
        "REFECTORY_API_KEY": "one two",
        "HF_TOKEN": "hf_secret",
    }
    log = TerminationLog.of_command(["--api-key", "three", "--api-key=four"], environment)
    log.write("R", "one, two, three, four, hf_secret, five")
    assert json.loads(path.read_text())["message"] == "***, ***, ***, ***, ***, five"


def test_the_default_is_written_only_where_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "termination-log"
    monkeypatch.setattr(refectory_server.cli.termination, "DEFAULT_TERMINATION_LOG", str(path))
    log = TerminationLog.of_command([], {})
    log.write("R", "m")
    assert not path.exists()
    path.touch()
    log.write("R", "m")
    assert json.loads(path.read_text()) == {"reason": "R", "message": "m"}


def invoke(error: Exception, log: Path) -> Result:
    @click.group(cls=Program)
    def program() -> None: ...

    @program.command(context_settings={"ignore_unknown_options": True})
    @click.argument("_args", nargs=-1)
    def end(_args: object) -> None:
        raise error

    return CliRunner().invoke(program, ["end", f"--termination-log={log}"])


@pytest.mark.parametrize("error", [StartupError("m", reason="R"), EngineDead("m", reason="R")])
def test_a_fatal_error_is_a_line_a_message_and_exit_code_1(
    tmp_path: Path, error: Exception
) -> None:
    result = invoke(error, tmp_path / "log")
    assert (result.exit_code, result.output) == (1, "refectory: m\n")
    assert json.loads((tmp_path / "log").read_text()) == {"reason": "R", "message": "m"}


def test_a_bug_is_named_without_its_text(tmp_path: Path) -> None:
    result = invoke(ValueError("a prompt, perhaps"), tmp_path / "log")
    assert isinstance(result.exception, ValueError)
    message = json.loads((tmp_path / "log").read_text())
    assert message == {"reason": "InternalError", "message": "ValueError; see the log"}


def test_a_log_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    result = invoke(StartupError("m", reason="R"), tmp_path)
    assert (result.exit_code, result.output) == (1, "refectory: m\n")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--port=70000"], "--port is 70000; allowed is [0, 65535]"),
        (["--max-num-seqs=many"], "'many' is not a whole number"),
        (["--no-such-flag"], "--no-such-flag"),
    ],
)
def test_a_wrong_flag_is_told(tmp_path: Path, args: list[str], said: str) -> None:
    log = tmp_path / "log"
    result = CliRunner().invoke(main, ["serve", *args, f"--termination-log={log}"])
    assert result.exit_code == 2
    message = json.loads(log.read_text())
    assert message["reason"] == "InvalidFlag"
    assert said in message["message"]


def test_help_is_no_fatal_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    result = CliRunner().invoke(main, ["serve", f"--termination-log={log}", "--help"])
    assert result.exit_code == 0
    assert not log.exists()


def test_a_load_that_fails_in_the_engine_is_told(tmp_path: Path) -> None:
    profile, log = tmp_path / "profile.yaml", tmp_path / "log"
    profile.write_text(FAILING)
    with server_process(f"--simulate={profile}", f"--termination-log={log}") as server:
        assert server.wait(20) == 1
    assert json.loads(log.read_text()) == {
        "reason": "SimulatedFault",
        "message": "no such weights: größe",
    }


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    args = ["--simulate=instant", f"--termination-log={log}"]
    with socket.create_server(("127.0.0.1", port)), server_process(*args, port=port) as server:
        assert server.wait(20) == 1
    message = json.loads(log.read_text())
    assert message["reason"] == "PortInUse"
    assert str(port) in message["message"]


def test_the_engines_death_is_told_and_a_drain_is_not(tmp_path: Path) -> None:
    log = tmp_path / "log"
    args = ["--simulate=instant", f"--termination-log={log}"]
    with server_process(*args) as server:
        server.wait_until_ready()
        os.kill(server.engine_pid, signal.SIGKILL)
        assert server.wait(5) == 1
        said = "the engine is dead: the engine process was killed by SIGKILL"
        assert json.loads(log.read_text()) == {"reason": "EngineDied", "message": said}
        assert server.output.splitlines()[-1] == f"refectory: {said}"
    log.unlink()
    with server_process(*args) as server:
        server.wait_until_ready()
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    assert not log.exists()
