"""What the operator builds on: port, /ready, flags, metrics, drain, termination message, download.

The operator imports nothing of the server; these tests hold the words that both sides use. One
simulated server is watched from its first breath to its last, as an operator would.
"""

from __future__ import annotations

import json
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

import refectory_server
from refectory_server.cli.main import main
from refectory_server.config import ApiConfig
from refectory_server.testing.server_process import ServerProcess, server_process

PROFILE = {
    "description": "a test",
    "model": "tiny",
    "num_blocks": 64,
    "max_model_len": 512,
    "kv_bytes_per_token": 1024,
    "step_seconds": {"fixed": 0.001},
    "load_seconds": 1.0,
}

LOADING_PHASES = {
    "starting",
    "download",
    "resolve_model",
    "import_torch",
    "load_weights",
    "size_kv_cache",
    "warm_up",
}
"""Of /ready's `phase` while loading; after it come ready, draining and dead."""

FLAGS = [
    "--served-model-name=chat",
    "--revision=0e9e39f249a16976918f6564b8830bc894c89659",
    "--download-dir=/cache",
    "--dtype=bfloat16",
    "--max-model-len=256",
    "--block-size=16",
    "--kv-cache-memory-bytes=1073741824",
    "--enable-prefix-caching",
    "--no-enable-prefix-caching",
    "--max-num-seqs=64",
    "--max-num-batched-tokens=1024",
    "--long-prefill-token-threshold=512",
    "--host=0.0.0.0",
    "--port=8000",
    "--metrics-port=8001",
    "--shutdown-timeout=120",
    "--max-connection-age=60",
    "--watchdog-timeout=300",
    "--log-format=json",
    "--termination-log=/dev/termination-log",
]
"""What the operator passes, each with a value it may have."""

GAUGES = {
    "vllm:num_requests_waiting": 0.0,
    "vllm:num_requests_running": 0.0,
    "vllm:kv_cache_usage_perc": 0.0,
    "vllm:gpu_cache_usage_perc": 0.0,
    "refectory_max_num_seqs": 128.0,
    "refectory_kv_tokens": 64.0 * 16,
    "refectory_draining": 0.0,
}
"""Name and value after one request of 5 prompt tokens has been answered."""
COUNTERS = {
    "vllm:num_preemptions_total": 0.0,
    "refectory_requests_rejected_total": 0.0,
    "vllm:admission_rejections_total": 0.0,
    "vllm:time_to_first_token_seconds_count": 1.0,
    "vllm:request_prompt_tokens_count": 1.0,
    "vllm:request_prompt_tokens_sum": 5.0,
}
DOWNLOAD_GAUGES = {
    "refectory_download_bytes",
    "refectory_download_total_bytes",
    "refectory_download_done",
}


@dataclass
class Life:
    """What one server showed, in order, each once: status and body of /ready."""

    ready: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    health: set[int] = field(default_factory=set)
    metrics: str = ""
    exit_code: int | None = None


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    profile = tmp_path_factory.mktemp("profile") / "profile.yaml"
    profile.write_text(yaml.safe_dump(PROFILE))
    life = Life()
    with server_process(f"--simulate={profile}", "--api-key=secret") as server:
        watch(server, life, until="ready")
        headers = {"Authorization": "Bearer secret"}
        body = {"prompt": "hello", "max_tokens": 3}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200
        life.metrics = httpx.get(f"{server.url}/metrics").text
        server.send_signal(signal.SIGTERM)
        watch(server, life, until="draining")
        life.exit_code = server.wait(20)
    return life


def watch(server: ServerProcess, life: Life, *, until: str) -> None:
    deadline = time.monotonic() + 60
    while not life.ready or life.ready[-1][1]["phase"] != until:
        assert time.monotonic() < deadline, life.ready
        try:
            ready = httpx.get(f"{server.url}/ready")
            life.health.add(httpx.get(f"{server.url}/health").status_code)
        except httpx.TransportError:
            assert server.is_running, server.output
            continue
        if (ready.status_code, ready.json()) not in life.ready:
            life.ready.append((ready.status_code, ready.json()))


def test_the_port_is_8000_on_every_address() -> None:
    assert (ApiConfig().host, ApiConfig().port) == ("0.0.0.0", 8000)


def test_ready_is_503_with_phase_and_progress_until_it_is_200(life: Life) -> None:
    *loading, ready, draining = life.ready
    assert len(loading) > 2
    for status, body in loading:
        assert status == 503
        assert body.keys() == {"phase", "progress"}
        assert body["phase"] in LOADING_PHASES
        assert 0.0 <= body["progress"] <= 1.0
    progress = [body["progress"] for _, body in loading if body["phase"] == "load_weights"]
    assert progress == sorted(progress)
    assert ready == (200, {"phase": "ready"})
    assert draining == (503, {"phase": "draining"})


def test_a_server_that_loads_or_drains_is_alive(life: Life) -> None:
    assert life.health == {200}


def test_a_drain_ends_with_exit_code_0(life: Life) -> None:
    assert life.exit_code == 0


def test_every_phase_in_the_source_is_one_the_operator_knows() -> None:
    [folder] = refectory_server.__path__
    named = set()
    for path in Path(folder).rglob("*.py"):
        if "testing" not in path.parts:
            text = path.read_text()
            named |= set(re.findall(r'\breport\("([a-z_]+)"', text))
            named |= set(re.findall(r'^[A-Z_]*_PHASE = "([a-z_]+)"', text, re.M))
    assert {"load_weights", "download", "warm_up"} <= named
    assert named <= LOADING_PHASES


def test_metrics_that_autoscaling_and_diagnosis_read(life: Life) -> None:
    expected = {**GAUGES, **COUNTERS}
    samples: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(life.metrics):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample.value)
            if sample.name in expected:
                assert (sample.labels["model_name"], sample.labels["engine"]) == ("tiny", "0")
    for name, value in expected.items():
        assert sum(samples[name]) == value, name
    assert sum(samples["vllm:time_to_first_token_seconds_sum"]) > 0


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_the_operator_passes(flag: str) -> None:
    result = CliRunner().invoke(main, ["serve", "--check", "--simulate=instant", flag])
    assert (result.exit_code, result.output[:4]) == (0, "ok: "), result.output


def test_one_command_line_may_have_them_all(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    args = ["serve", "--check", "--simulate=instant", f"--api-key-file={keys}", *FLAGS]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("ok: chat: ")


def test_a_failed_start_says_why_in_the_termination_log(tmp_path: Path) -> None:
    profile, log = tmp_path / "profile.yaml", tmp_path / "log"
    faults = {"fail_load": "no such weights " * 500}
    profile.write_text(yaml.safe_dump({**PROFILE, "load_seconds": 0, "faults": faults}))
    with server_process(f"--simulate={profile}", f"--termination-log={log}") as server:
        assert server.wait(20) == 1
    data = log.read_bytes()
    assert len(data) < 2048
    message = json.loads(data)
    assert message.keys() == {"reason", "message"}
    assert re.fullmatch(r"([A-Z][a-z0-9]*)+", message["reason"])
    assert message["message"].startswith("no such weights no such weights")


def test_every_reason_in_the_source_is_a_condition_reason() -> None:
    """Kubernetes' own rule for a condition's reason, in the stricter form used here."""
    [folder] = refectory_server.__path__
    text = "".join(path.read_text() for path in Path(folder).rglob("*.py"))
    reasons = set(re.findall(r'reason="([A-Z]\w*)"', text))
    assert {"ModelMissing", "PortInUse", "KVCacheTooSmall", "HubForbidden"} <= reasons
    assert {r for r in reasons if not re.fullmatch(r"[A-Za-z0-9]{3,60}", r)} == set()


def test_download_has_the_flags_and_metrics_of_a_job() -> None:
    help_text = CliRunner().invoke(main, ["download", "--help"]).output
    for flag in ("--to", "--revision", "--metrics-port", "--termination-log", "--max-retries"):
        assert flag in help_text
    source = (Path(refectory_server.__path__[0]) / "cli" / "download_metrics.py").read_text()
    assert set(re.findall(r'"(refectory_\w+)"', source)) == DOWNLOAD_GAUGES
