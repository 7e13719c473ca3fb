"""`refectory download` as a process, against a small hub."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from refectory_server.models.download_marker import MARKER_NAME
from refectory_server.testing.hub_server import HubFaults, HubServer
from refectory_server.testing.server_process import free_port

MIB = 1 << 20
WEIGHTS = random.Random(1).randbytes(4 * MIB)
FILES = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": WEIGHTS}
NUM_BYTES = sum(map(len, FILES.values()))


def start(hub: HubServer, *args: str, **environment: str) -> subprocess.Popen[str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return subprocess.Popen(
        [str(Path(sys.executable).with_name("refectory")), "download", *args],
        env={**inherited, "HF_ENDPOINT": hub.url, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(hub: HubServer, *args: str, **environment: str) -> tuple[int, str, str]:
    """Exit code, standard output, last line of standard error."""
    process = start(hub, *args, **environment)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, (err.splitlines() or [""])[-1]


def samples(port: int) -> dict[str, float]:
    try:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    except httpx.TransportError:
        return {}
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_killed_in_the_middle_it_goes_on_and_a_third_call_does_nothing(
    hub: HubServer, tmp_path: Path
) -> None:
    model = hub.add("org/name", FILES)
    hub.faults = HubFaults(seconds_per_piece=0.05)
    port = free_port()
    process = start(
        hub, "org/name", f"--to={tmp_path}", f"--metrics-port={port}", "--host=127.0.0.1"
    )
    seen: dict[str, float] = {}
    deadline = time.monotonic() + 30
    while seen.get("refectory_download_bytes", 0) < MIB:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        seen = samples(port)
    process.kill()
    process.communicate()
    assert seen["refectory_download_total_bytes"] == NUM_BYTES
    assert seen["refectory_download_bytes"] < NUM_BYTES
    assert seen["refectory_download_done"] == 0
    assert not (tmp_path / MARKER_NAME).exists()

    hub.faults = HubFaults()
    hub.requests.clear()
    code, out, _ = run(hub, "hf://org/name", f"--to={tmp_path}")
    assert code == 0
    place = f"at {model.commit} in {tmp_path}: 3 files, {NUM_BYTES} bytes"
    assert out.startswith(f"downloaded org/name {place} in ")
    [content_request] = hub.content_requests()
    offset = int(content_request.partition("bytes=")[2].removesuffix("-"))
    assert MIB // 2 < offset < len(WEIGHTS)
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS

    hub.requests.clear()
    code, out, _ = run(hub, "org/name", "--to", str(tmp_path))
    assert (code, out) == (0, f"already complete: org/name {place}, nothing downloaded\n")
    assert hub.requests == []


def test_sigterm_ends_it_at_once(hub: HubServer, tmp_path: Path) -> None:
    """Also as the first process of a container, which ignores signals nobody handles."""
    hub.add("org/name", FILES)
    hub.faults = HubFaults(seconds_per_piece=0.2)
    process = start(hub, "org/name", f"--to={tmp_path}")
    part = tmp_path / ".refectory-download"
    deadline = time.monotonic() + 30
    while not part.is_dir() or not any(path.stat().st_size > 0 for path in part.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("change", "token", "reason"),
    [
        ({"token": "t"}, "", "HubUnauthorized"),
        ({"gated_to": "t"}, "hf_secret", "HubForbidden"),
        ({"token": "t"}, "hf_secret", "ModelMissing"),
    ],
)
def test_a_refusal_is_one_line_and_a_termination_message(
    hub: HubServer, tmp_path: Path, change: dict[str, str], token: str, reason: str
) -> None:
    model = hub.add("org/name", FILES)
    for key, value in change.items():
        setattr(model, key, value)
    log = tmp_path / "log"
    args = ["org/name", f"--to={tmp_path / 'model'}", f"--termination-log={log}"]
    code, out, line = run(hub, *args, HF_TOKEN=token)
    assert (code, out) == (1, "")
    message = json.loads(log.read_text())
    assert message["reason"] == reason
    assert line == f"refectory: {message['message']}"
    assert "hf_secret" not in line


def test_a_hub_that_stays_broken_is_given_up_with_its_reason(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.faults = HubFaults(num_failing_requests=1000)
    log = tmp_path / "log"
    args = [f"--to={tmp_path / 'model'}", "--max-retries=1", f"--termination-log={log}"]
    code, _, line = run(hub, "org/name", *args)
    assert code == 1
    assert line == f"refectory: {hub.url} answered 503; given up after 2 tries"
    assert json.loads(log.read_text())["reason"] == "HubUnreachable"


def test_a_disk_that_fills_up_is_told_and_what_has_come_is_kept(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.add("org/name", FILES)
    log = tmp_path / "log"
    process = start(hub, "org/name", f"--to={tmp_path}", f"--termination-log={log}")
    # Writing beyond this size fails as it does on a full disk.
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (MIB, MIB))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    message = json.loads(log.read_text())
    assert message["reason"] == "DiskFull"
    assert message["message"].startswith(f"the disk of {tmp_path} is full: ")
    assert err.splitlines()[-1] == f"refectory: {message['message']}"
    # Files load side by side, so a small one may be in work as well.
    [part] = (tmp_path / ".refectory-download").glob("model.safetensors.*")
    assert part.stat().st_size == MIB
    assert run(hub, "org/name", f"--to={tmp_path}")[0] == 0
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("model", ["embedded://smollm2-135m", "/somewhere", "name"])
def test_only_a_hubs_model_can_be_downloaded(hub: HubServer, tmp_path: Path, model: str) -> None:
    code, _, line = run(hub, model, f"--to={tmp_path}")
    assert code == 1
    assert line == (f"refectory: {model} is not a model of a hub: give org/name or hf://org/name")
