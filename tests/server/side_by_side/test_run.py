"""`make bench` with a tiny model: ours measured, also over HTTP; the others are told absent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from refectory_server.testing.sentencepiece_tokenizer import sentencepiece_backend
from refectory_server.testing.tiny_llama import make_tiny_llama
from side_by_side.catalogue import CATALOGUE, EngineAbsent, choose
from side_by_side.engine_process import EngineFailed, engine_process
from side_by_side.point import TOKEN_IDS, Point
from side_by_side.protocol import Settings
from side_by_side.report import read_report

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of peers with a model that all engines' prompts fit, and no environment."""
    folder = tmp_path_factory.mktemp("peers")
    model = folder / "models" / "tiny"
    model.parent.mkdir()
    make_tiny_llama(model, vocab_size=TOKEN_IDS.stop)
    sentencepiece_backend().save(str(model / "tokenizer.json"))
    return folder


def test_ours_is_measured_and_absent_engines_are_told_with_the_reason(
    peers: Path, tmp_path: Path
) -> None:
    arguments = [f"--peers={peers}", "--model=tiny", "--points=2x8/4 1x4/2", "--rounds=2"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "side_by_side", *arguments, f"--results={tmp_path}"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "server" / "benchmarks")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.iterdir()
    report = read_report(path)
    assert path.name == f"{report.date}-tiny.json"
    assert {engine.name: engine.problem for engine in report.engines} == {
        "refectory": None,
        "refectory-http": None,
        "openvino-f32": "no environment openvino",
        "openvino-bf16": "no environment openvino",
        "vllm": "no environment vllm",
        "llamacpp": "no environment llamacpp",
        "transformers": "no environment transformers",
    }
    points = [Point(2, 8, 4), Point(1, 4, 2)]
    assert sorted((m.engine, m.round, str(m.point)) for m in report.measurements) == sorted(
        (engine, number, str(point))
        for engine in ("refectory", "refectory-http")
        for number in (1, 2)
        for point in points
    )
    assert report.ratio("refectory", points[0]) == 1.0
    assert str(peers) not in path.read_text()
    assert "| Refectory, HTTP streams | " in done.stdout


def test_an_engine_that_cannot_load_says_why_without_the_machines_paths(tmp_path: Path) -> None:
    settings = Settings(
        model=str(tmp_path / "nothing"), num_threads=1, max_num_prompts=1, max_len=8, variant=""
    )
    with (
        pytest.raises(EngineFailed, match=r"no such file or folder|does not exist") as failure,
        engine_process("refectory", Path(sys.executable), settings),
    ):
        raise AssertionError("it loaded")
    assert str(tmp_path.parent) not in str(failure.value)


ORPHAN = """
import os, signal, sys
from pathlib import Path
from side_by_side import engine_process
from side_by_side.protocol import Settings

engine_process.PACKAGE_ROOT = Path(sys.argv[1])
settings = Settings(model="", num_threads=1, max_num_prompts=1, max_len=1, variant="")
with engine_process.engine_process("idle", Path(sys.executable), settings) as engine:
    print(engine.facts["pid"], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
IDLE = """
import json, os, sys

print(json.dumps({"pid": os.getpid()}), flush=True)
sys.stdin.read()
"""


def test_a_stopped_engine_ends_though_the_run_was_killed(tmp_path: Path) -> None:
    module = tmp_path / "side_by_side" / "engines" / "idle.py"
    module.parent.mkdir(parents=True)
    module.write_text(IDLE)
    done = subprocess.run(
        [sys.executable, "-P", "-c", ORPHAN, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "server" / "benchmarks")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    stat = Path(f"/proc/{int(done.stdout)}/stat")
    deadline = time.monotonic() + 30
    while stat.exists() and stat.read_text().rpartition(") ")[2][0] != "Z":
        assert time.monotonic() < deadline, stat.read_text()
        time.sleep(0.01)


def test_engines_are_chosen_by_name() -> None:
    assert [spec.name for spec in choose(["vllm", "refectory"])] == ["vllm", "refectory"]
    assert choose([]) == list(CATALOGUE)
    with pytest.raises(ValueError, match="there is no engine 'sglang'; allowed are refectory, "):
        choose(["sglang"])


def test_without_a_folder_of_peers_only_ours_reads_the_embedded_model() -> None:
    ours, theirs = choose(["refectory", "vllm"])
    assert ours.model(None, "embedded://a") == "embedded://a"
    with pytest.raises(EngineAbsent, match="does not read embedded://a"):
        theirs.model(None, "embedded://a")
    with pytest.raises(EngineAbsent, match="no folder of environments was named"):
        theirs.python(None)
