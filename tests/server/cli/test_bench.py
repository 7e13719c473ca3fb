"""`refectory bench serve` as a program, against a simulated server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from refectory_server.bench.workload import RandomWorkload
from refectory_server.testing.server_process import ServerProcess, server_process


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process("--simulate=instant") as process:
        process.wait_until_ready()
        yield process


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("refectory")), "bench", "serve"]
    return subprocess.run([*command, *args], capture_output=True, text=True, timeout=60)


def bench(server: ServerProcess, *args: str) -> subprocess.CompletedProcess[str]:
    return run(f"--base-url={server.url}", *args)


def test_the_block_is_printed_and_the_json_saved(server: ServerProcess, tmp_path: Path) -> None:
    done = bench(
        server,
        *("--num-prompts=5", "--random-input-len=7", "--random_output_len=3", "--num-warmups=1"),
        *("--max-concurrency=2", "--request-rate=100", "--ignore-eos", "--save-result"),
        *(f"--result-dir={tmp_path / 'results'}", "--result-filename=one.json"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    prompts = RandomWorkload(num_prompts=5, input_len=7, output_len=3, request_rate=100).requests()
    num_input = sum(len(request.prompt) for request in prompts)  # a byte is a token here
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["Successful", "requests:", "5"]
    assert lines[4].split() == ["Total", "input", "tokens:", str(num_input)]
    assert lines[5].split() == ["Total", "generated", "tokens:", "15"]
    saved = json.loads((tmp_path / "results" / "one.json").read_text())
    assert (saved["completed"], saved["total_output_tokens"]) == (5, 15)
    assert (saved["max_concurrency"], saved["request_rate"]) == (2, 100.0)


def test_failures_are_counted_told_and_the_exit_code(server: ServerProcess) -> None:
    done = bench(server, "--num-prompts=2", "--model=unknown")
    assert done.returncode == 1
    assert done.stdout.splitlines()[2].split() == ["Failed", "requests:", "2"]
    assert done.stderr.startswith('2 failed: 404: {"error":')


def test_a_command_line_of_vllms(server: ServerProcess) -> None:
    port = server.url.rpartition(":")[2]
    args = f"--backend vllm --endpoint /v1/completions --dataset-name random --port {port}"
    done = run(*args.split(), "--host=localhost", "--num-prompts=1", "--percentile-metrics=ttft")
    assert (done.returncode, "No such option" in done.stderr) == (2, True)  # a subset of its flags
    done = run(*args.split(), "--host=localhost", "--num-prompts=1")
    assert (done.returncode, done.stderr) == (0, "")
    assert run("--dataset-name=sharegpt").returncode == 2


def test_a_base_url_of_openais_clients_and_one_that_is_none(server: ServerProcess) -> None:
    assert bench(server, f"--base-url={server.url}/v1", "--num-prompts=1").returncode == 0
    done = bench(server, "--base-url=localhost:8000")
    assert done.returncode == 2
    assert "base_url is 'localhost:8000'; allowed is http" in done.stderr.splitlines()[-1]
