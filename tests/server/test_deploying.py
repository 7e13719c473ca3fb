"""docs/deploying.md: its commands run as they stand there, its pod and its words hold."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

import refectory_server
from refectory_server.models.download_marker import MARKER_NAME
from refectory_server.testing.hub_server import hub_server

PAGE = (Path(__file__).parents[2] / "docs" / "deploying.md").read_text()
FILES = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"weights"}


def run(beginning: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The page's one command that begins so, in an empty folder."""
    [command] = [
        block
        for block in re.findall(r"^```sh\n(.*?)\n```", PAGE, re.M | re.S)
        if block.startswith(beginning)
    ]
    program, *args = shlex.split(command)
    assert program == ".venv/bin/refectory"
    return subprocess.run(
        [str(Path(sys.executable).with_name("refectory")), *args],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_check(tmp_path: Path) -> None:
    done = run(".venv/bin/refectory serve --check", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok: smollm2-135m: LlamaForCausalLM, ")


def test_download(tmp_path: Path) -> None:
    with hub_server() as hub:
        hub.add("HuggingFaceTB/SmolLM2-135M-Instruct", FILES)
        done = run(".venv/bin/refectory download", tmp_path, HF_ENDPOINT=hub.url, HF_TOKEN="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("downloaded HuggingFaceTB/SmolLM2-135M-Instruct at ")
    assert (tmp_path / "models" / "smollm2" / "model.safetensors").read_bytes() == b"weights"
    assert (tmp_path / "models" / "smollm2" / MARKER_NAME).is_file()


def test_the_pods_grace_period_covers_pre_stop_and_drain() -> None:
    [block] = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
    pod = yaml.safe_load(block)
    [container] = pod["containers"]
    [drain] = [arg for arg in container["args"] if arg.startswith("--shutdown-timeout=")]
    pre_stop = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    needed = pre_stop + int(drain.partition("=")[2]) + 15
    assert pod["terminationGracePeriodSeconds"] == needed
    assert container["startupProbe"]["httpGet"]["path"] == "/ready"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"


def test_every_reason_on_the_page_is_one_the_program_gives() -> None:
    [folder] = refectory_server.__path__
    source = "".join(path.read_text() for path in Path(folder).rglob("*.py"))
    given = set(re.findall(r'"([A-Z]\w+)"', source))
    told = set(re.findall(r"^\| `([A-Z]\w+)` \|", PAGE, re.M))
    assert len(told) == 9
    assert told <= given
