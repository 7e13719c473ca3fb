"""`refectory serve --simulate`: the whole server in two processes, without a model or torch."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import openai

from refectory_server.runner.simulated_model_runner import simulated_num_tokens
from refectory_server.simulation_profile import Faults, SimulationProfile, StepCost
from refectory_server.testing.process_usage import resident_bytes
from refectory_server.testing.server_process import ServerProcess, server_process
from refectory_server.testing.simulated_profile import expected_text, write_profile


def test_a_shipped_profile_answers_with_known_tokens_in_little_memory() -> None:
    with server_process("--simulate=instant") as server:
        server.wait_until_ready()
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        assert [model.id for model in client.models.list()] == ["instant"]
        answer = client.completions.create(model="instant", prompt="hello", max_tokens=4000, seed=3)
        count = simulated_num_tokens(b"hello", 48, seed=3)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == count
        assert answer.choices[0].text == expected_text(b"hello", count - 1, seed=3)
        assert answer.choices[0].finish_reason == "stop"
        assert resident_bytes(server.pid) + resident_bytes(server.engine_pid) < 200_000_000
        for pid in (server.pid, server.engine_pid):
            assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
        client.close()
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0


def test_the_name_on_the_command_line_is_the_name_served(tmp_path: Path) -> None:
    args = ["meta-llama/Llama-3.1-8B-Instruct", f"--simulate={write_profile(tmp_path)}"]
    with server_process(*args, "--max-model-len=64") as server:
        server.wait_until_ready()
        models = httpx.get(f"{server.url}/v1/models").json()["data"]
        assert [model["id"] for model in models] == ["meta-llama/Llama-3.1-8B-Instruct"]
        assert models[0]["max_model_len"] == 64


def test_a_given_tokenizer_counts_and_speaks_words(tmp_path: Path) -> None:
    profile = write_profile(tmp_path, tokenizer="embedded://smollm2-135m")
    with server_process(f"--simulate={profile}") as server:
        server.wait_until_ready()
        body = {"prompt": "What is the capital of France?", "max_tokens": 20, "ignore_eos": True}
        answer = httpx.post(f"{server.url}/v1/completions", json=body).json()
        assert answer["usage"]["prompt_tokens"] == 7
        assert answer["usage"]["completion_tokens"] == 20
        assert answer["choices"][0]["text"].replace(" ", "").isalpha()


def test_a_failing_load_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    profile = write_profile(tmp_path, load_seconds=0.5, faults={"fail_load": "no such weights"})
    with server_process(f"--simulate={profile}") as server:
        assert server.wait(20) == 1
        assert server.output.splitlines()[-1] == "refectory: no such weights"


def test_the_documented_way_to_know_the_answer() -> None:
    page = Path(__file__).parents[2] / "docs" / "simulator.md"
    block = page.read_text().partition("```python\n")[2].partition("```")[0]
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == repr(expected_text(b"hello", 20).encode())


def test_every_field_of_a_profile_is_documented() -> None:
    page = Path(__file__).parents[2] / "docs" / "simulator.md"
    text = page.read_text()
    for struct in (SimulationProfile, StepCost, Faults):
        for field in struct.__struct_fields__:
            assert f"`{field}`" in text or f".{field}`" in text or field == "faults"


def ask(server: ServerProcess) -> int:
    body = {"prompt": "hello", "max_tokens": 3}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=20).status_code


def test_a_crash_comes_after_its_number_of_requests(tmp_path: Path) -> None:
    profile = write_profile(tmp_path, faults={"crash_after_requests": 2})
    with server_process(f"--simulate={profile}") as server:
        server.wait_until_ready()
        assert [ask(server) for _ in range(3)] == [200, 200, 503]
        assert server.wait(5) == 1
        assert "SIGKILL" in server.output


def test_a_hang_is_seen_by_the_watchdog(tmp_path: Path) -> None:
    profile = write_profile(tmp_path, faults={"hang_after_requests": 1})
    with server_process(f"--simulate={profile}", "--watchdog-timeout=1") as server:
        server.wait_until_ready()
        assert ask(server) == 200
        assert httpx.get(f"{server.url}/health").status_code == 200
        pending: list[int] = []
        asking = threading.Thread(target=lambda: pending.append(ask(server)))
        asking.start()
        deadline = time.monotonic() + 15
        while httpx.get(f"{server.url}/health").status_code != 503:
            assert time.monotonic() < deadline, "the watchdog does not bark"
            time.sleep(0.05)
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 130
        asking.join()
        assert pending == [503]
