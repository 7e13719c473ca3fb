"""How far the start is, on a real terminal: a bar that no line of the log is mixed with."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from refectory_server.testing.hub_server import HubFaults, hub_server
from refectory_server.testing.server_process import free_port
from refectory_server.testing.simulated_profile import write_profile

BAR = re.compile(r"(\w+) +(\d+)% \|[^|]{20}\| \d\d:\d\d\r")


@contextmanager
def serve_on_terminal(
    *args: str, env: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`refectory serve *args`, its standard error a terminal, whose other end comes with it."""
    terminal, stderr = pty.openpty()
    termios.tcsetwinsize(stderr, (24, 120))
    command = [str(Path(sys.executable).with_name("refectory")), "serve", *args]
    command += ["--host=127.0.0.1", f"--port={free_port()}"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=stderr, env={**os.environ, **env}
    )
    os.close(stderr)
    try:
        yield process, terminal
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def output_of(*args: str, exit_code: int = 128 + signal.SIGINT, **env: str) -> str:
    """All that a server writes to its terminal; interrupted when it is ready."""
    output = b""
    with serve_on_terminal(*args, env=env) as (process, terminal):
        try:
            while piece := os.read(terminal, 65536):
                was_ready = b"try: curl" in output
                output += piece
                if not was_ready and b"try: curl" in output:
                    process.send_signal(signal.SIGINT)
        except OSError:  # Linux's end of a terminal
            assert process.wait(30) == exit_code
    return output.decode()


def visible_lines(output: str) -> list[str]:
    """What stands on the terminal in the end: a carriage return goes back to write over."""
    lines = []
    for written in output.replace("\r\n", "\n").split("\n"):
        shown = ""
        for text in written.split("\r"):
            shown = text + shown[len(text) :]
        lines.append(shown.rstrip())
    return [line for line in lines if line]


def percents(output: str, phase: str) -> list[int]:
    """What the bar showed of a phase, which cannot but grow."""
    shown = [int(percent) for name, percent in BAR.findall(output) if name == phase]
    assert shown == sorted(shown)
    return shown


def test_a_bar_under_the_log_until_the_server_is_ready(tmp_path: Path) -> None:
    output = output_of(f"--simulate={write_profile(tmp_path, load_seconds=1.0)}")
    loading, _, ready = output.partition("is ready after")
    assert len(set(percents(loading, "load_weights"))) > 3
    assert not BAR.search(ready)
    for line in visible_lines(output):
        assert re.match(r"\d{4}-\d\d-\d\d .* (INFO|WARNING) ", line), output
        assert "|" not in line


def test_a_bar_of_the_download_in_place_of_its_lines_in_the_log(tmp_path: Path) -> None:
    files = {
        "config.json": b'{"architectures": ["Nobody"]}',
        "tokenizer.json": b"{}",
        "model.safetensors": bytes(600_000),
    }
    with hub_server() as hub:
        hub.add("org/nobody", files)
        hub.faults = HubFaults(seconds_per_piece=0.1)
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_TOKEN": ""}
        output = output_of("org/nobody", exit_code=1, **env)
    assert len(set(percents(output, "download"))) > 3
    assert "downloading org/nobody: " not in output
    assert "Nobody" in visible_lines(output)[-1]


def test_a_log_for_programs_has_no_bar_in_it(tmp_path: Path) -> None:
    profile = write_profile(tmp_path, load_seconds=0.3)
    output = output_of(f"--simulate={profile}", "--log-format=json")
    assert [json.loads(line)["level"] for line in output.splitlines()].count("info") > 3


def test_the_bar_is_gone_before_an_error_is_told(tmp_path: Path) -> None:
    profile = write_profile(tmp_path, load_seconds=0.5, faults={"fail_load": "no such luck"})
    output = output_of(f"--simulate={profile}", exit_code=1)
    assert BAR.search(output)
    assert visible_lines(output)[-1].endswith("no such luck")
    assert not any("|" in line for line in visible_lines(output))
