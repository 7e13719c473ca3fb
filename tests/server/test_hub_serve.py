"""`refectory serve org/name`: from an empty disk to an answer, against a small hub."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from refectory_server.testing.hub_server import HubFaults, HubServer, hub_server
from refectory_server.testing.server_process import server_process
from refectory_server.testing.tiny_checkpoint import make_tiny_checkpoint

FEW_BLOCKS = "--num-gpu-blocks-override=64"
BODY = {"prompt": "hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    make_tiny_checkpoint(folder, max_shard_size="100KB")
    return folder


@pytest.fixture
def hub(checkpoint: Path) -> Iterator[HubServer]:
    with hub_server() as hub:
        hub.add_folder("org/tiny", checkpoint)
        yield hub


def environment(hub: HubServer, home: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_TOKEN": ""}


def completion(url: str) -> dict[str, object]:
    answer = httpx.post(f"{url}/v1/completions", json=BODY).json()
    return {"text": answer["choices"][0]["text"], **answer["usage"]}


def test_from_an_empty_disk_to_an_answer_and_again_without_a_network(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.faults = HubFaults(seconds_per_piece=0.1)
    environ = environment(hub, tmp_path)
    seen: list[dict[str, Any]] = []
    with server_process("hf://org/tiny@v1", FEW_BLOCKS, env=environ) as server:
        while server.ready_status() != 200:
            assert server.is_running, server.output
            try:
                body = httpx.get(f"{server.url}/ready").json()
            except httpx.TransportError:
                continue
            if body not in seen:
                seen.append(body)
            time.sleep(0.02)
        downloading = [body["progress"] for body in seen if body["phase"] == "download"]
        assert len(downloading) > 1
        assert downloading == sorted(downloading)
        names = [model["id"] for model in httpx.get(f"{server.url}/v1/models").json()["data"]]
        assert names == ["org/tiny"]
        metrics = httpx.get(f"{server.url}/metrics").text
        assert 'refectory_startup_seconds{engine="0",model_name="org/tiny",phase="download"}' in (
            metrics
        )
        from_hub = completion(server.url)
        assert "downloading org/tiny@v1: " in server.output
        assert "\r" not in server.output  # a bar is for terminals
    # Every pod's disk keeps it: a hub that is down later is no reason not to start.
    hub.faults = HubFaults(num_failing_requests=1000)
    with server_process("org/tiny", "--revision=v1", FEW_BLOCKS, env=environ) as server:
        server.wait_until_ready()
        assert completion(server.url) == from_hub
        assert "answered 503; given up after 1 tries; going on with" in server.output


def test_a_model_that_may_not_be_read_ends_the_server(hub: HubServer, tmp_path: Path) -> None:
    hub.models["org/tiny"].gated_to = "t"
    log = tmp_path / "log"
    args = ["org/tiny", f"--termination-log={log}", f"--download-dir={tmp_path / 'models'}"]
    with server_process(*args, env=environment(hub, tmp_path)) as server:
        assert server.wait(30) == 1
        message = json.loads(log.read_text())
        assert message["reason"] == "HubForbidden"
        lines = [line for line in server.output.splitlines() if line.startswith("refectory: ")]
        assert lines == [f"refectory: {message['message']}"]
        assert "Traceback" not in server.output


def test_sigterm_and_a_kill_end_the_download_too(hub: HubServer, tmp_path: Path) -> None:
    hub.faults = HubFaults(seconds_per_piece=1.0)
    for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
        with server_process("org/tiny", env=environment(hub, tmp_path)) as server:
            deadline = time.monotonic() + 30
            while not (workers := download_workers(server.pid)) or not hub.num_content_bytes:
                assert time.monotonic() < deadline, server.output
                time.sleep(0.02)
            server.send_signal(number)
            assert server.wait(20) == code
            while any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers):
                assert time.monotonic() < deadline, "the download goes on"
                time.sleep(0.02)


def download_workers(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [
        int(child)
        for child in children
        if b"download_worker" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def test_check_reads_headers_only(hub: HubServer, checkpoint: Path, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("refectory")), "serve", "org/tiny", "--check"]
    done = subprocess.run(
        command,
        env={**os.environ, **environment(hub, tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "ok: org/tiny: LlamaForCausalLM, 30 tensors, max_model_len 256, no chat template\n"
    )
    num_weight_bytes = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    num_text_bytes = sum(path.stat().st_size for path in checkpoint.glob("*.json"))
    assert hub.num_content_bytes < num_text_bytes + num_weight_bytes / 10
    assert list(tmp_path.iterdir()) == []


def test_the_python_api_downloads_too(hub: HubServer, checkpoint: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from refectory_server import LLM, SamplingParams\n"
        "params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)\n"
        "for model in sys.argv[1:]:\n"
        "    llm = LLM(model, num_gpu_blocks_override=64)\n"
        "    [output] = llm.generate('hello', params, use_tqdm=False)\n"
        "    print(output.outputs[0].token_ids)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "org/tiny", str(checkpoint)],
        env={**os.environ, **environment(hub, tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    from_hub, from_folder = done.stdout.splitlines()
    assert from_hub == from_folder
    assert len(json.loads(from_hub)) == 8
    [folder] = (tmp_path / "refectory" / "org--tiny").iterdir()
    assert (folder / "config.json").is_file()
