"""The whole program with the embedded model: `refectory serve` and real clients."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from refectory_kernels.cpu_level import available_levels
from refectory_server.testing.server_process import ServerProcess, free_port, server_process

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
# The openai client insists on a model; a null is a request without one.
NO_MODEL: Any = None


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process("--max-model-len=2048", "--served-model-name=smollm2") as process:
        process.wait_until_ready()
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_capital_of_france_by_curl(server: ServerProcess) -> None:
    body = json.dumps({"messages": QUESTION, "temperature": 0})
    answer = subprocess.run(
        [
            *("curl", "-sS", "--fail", f"{server.url}/v1/chat/completions"),
            *("-H", "Content-Type: application/json", "-d", body),
        ],
        capture_output=True,
        check=True,
        timeout=60,
    )
    choice = json.loads(answer.stdout)["choices"][0]
    assert "Paris" in choice["message"]["content"]
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("model", ["smollm2", NO_MODEL])
def test_the_capital_of_france_by_the_openai_client(client: openai.OpenAI, model: Any) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        temperature=0,
        max_tokens=20,
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.model == "smollm2"


@pytest.mark.parametrize("model", ["smollm2", NO_MODEL])
def test_the_capital_of_france_streaming(client: openai.OpenAI, model: Any) -> None:
    stream = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        temperature=0,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert "Paris" in text
    usage = chunks[-1].usage
    assert usage is not None
    assert chunks[-1].choices == []
    # "The capital of France is Paris." and the end token.
    assert usage.completion_tokens == 8
    assert usage.total_tokens == usage.prompt_tokens + 8


def test_completions_tokenize_and_detokenize_agree(
    server: ServerProcess, client: openai.OpenAI
) -> None:
    prompt = "Zwölf Boxkämpfer jagen Viktor über den großen Sylter Deich 🦊"
    tokens = httpx.post(f"{server.url}/tokenize", json={"prompt": prompt}).json()
    assert tokens["count"] == len(tokens["tokens"])
    text = httpx.post(f"{server.url}/detokenize", json={"tokens": tokens["tokens"]}).json()
    assert text["prompt"] == prompt
    by_text = client.completions.create(model="smollm2", prompt=prompt, temperature=0)
    by_ids = client.completions.create(model="smollm2", prompt=tokens["tokens"], temperature=0)
    assert by_text.choices[0].text == by_ids.choices[0].text
    assert by_text.usage is not None
    assert by_text.usage.prompt_tokens == tokens["count"]


def test_a_seed_gives_the_same_answer_alone_and_in_company(server: ServerProcess) -> None:
    async def ask(client: openai.AsyncOpenAI, seed: int) -> str:
        answer = await client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "Tell me a story about a fox."}],
            temperature=0.9,
            seed=seed,
            max_tokens=16,
        )
        return answer.choices[0].message.content or ""

    async def scenario() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            alone = await ask(client, 7)
            company = await asyncio.gather(*(ask(client, seed) for seed in (1, 7, 2, 7)))
            assert company[1] == company[3] == alone
            assert len(set(company)) == 3

    asyncio.run(scenario())


def test_metrics_are_read_while_the_engine_is_busy(server: ServerProcess) -> None:
    def ask() -> None:
        body = {"prompt": "the " * 1500, "max_tokens": 4, "temperature": 0}
        httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).raise_for_status()

    asking = threading.Thread(target=ask)
    asking.start()
    pending = []
    while asking.is_alive():
        text = httpx.get(f"{server.url}/metrics", timeout=5.0).text
        samples = {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        pending.append(samples["vllm:num_requests_running"] + samples["vllm:num_requests_waiting"])
        time.sleep(0.02)
    asking.join()
    assert len(pending) > 5
    assert max(pending) == 1
    assert samples["vllm:prompt_tokens_total"] > 0


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({"messages": QUESTION, "temperature": 3}, "temperature", "2"),
        ({"messages": QUESTION, "max_tokens": -1}, "max_tokens", "-1"),
        ({"messages": QUESTION, "max_tokens": 5000}, "max_tokens", "5000"),
        ({"messages": QUESTION, "top_p": 0}, "top_p", "0"),
        ({"messages": []}, "messages", ""),
        ({"messages": QUESTION, "tempurature": 1}, "tempurature", "temperature"),
        ({"messages": QUESTION, "tools": [{"type": "function"}]}, "tools", ""),
        ({"messages": [{"role": "user", "content": "the " * 3000}]}, "messages", "2048"),
    ],
)
def test_bad_input_is_a_400_that_names_the_field(
    server: ServerProcess, body: dict[str, object], field: str, said: str
) -> None:
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert field in (error["param"] or "") or field in error["message"]
    assert said in error["message"]


def test_a_client_that_leaves_frees_its_blocks(server: ServerProcess) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()  # dropping it would close the stream
        next(lines)
        assert httpx.get(f"{server.url}/load").json()["running"] == 1
    deadline = time.monotonic() + 30
    while (load := httpx.get(f"{server.url}/load").json())["running"] or load["in_flight"] > 0:
        assert time.monotonic() < deadline, load
        time.sleep(0.02)
    assert load["kv_cache_usage"] == 0.0


def test_keys_guard_the_api_and_stay_out_of_the_log(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first-secret\nsecond-secret\n")
    with server_process(f"--api-key-file={keys}", "--max-model-len=512") as server:
        server.wait_until_ready()
        assert httpx.get(f"{server.url}/v1/models").status_code == 401
        for key in ("first-secret", "second-secret"):
            headers = {"Authorization": f"Bearer {key}"}
            assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200
        assert "secret" not in server.output
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0


class KeepAliveClient:
    """Sends a short request again and again on pooled connections, and counts what it gets."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.statuses: list[int] = []
        self.failures: list[str] = []

    def __enter__(self) -> KeepAliveClient:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        body = {"prompt": "One, two,", "max_tokens": 2, "temperature": 0}
        with httpx.Client(timeout=60) as client:
            while not self._stop.is_set():
                try:
                    answer = client.post(f"{self._url}/v1/completions", json=body)
                    self.statuses.append(answer.status_code)
                except httpx.TransportError as error:
                    self.failures.append(repr(error))
                time.sleep(0.02)


def test_sigterm_finishes_streams_and_refuses_nobody() -> None:
    num_streams, num_tokens = 16, 60
    with server_process("--max-model-len=512", "--shutdown-timeout=120") as server:
        server.wait_until_ready()

        async def stream(client: openai.AsyncOpenAI, began: asyncio.Semaphore) -> int:
            chunks = await client.completions.create(
                model="smollm2-135m",
                prompt="Once upon a time",
                max_tokens=num_tokens,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True, "model": None},
            )
            usage = None
            num_chunks = 0
            async for chunk in chunks:
                num_chunks += 1
                if num_chunks == 1:
                    began.release()
                usage = chunk.usage or usage
            assert usage is not None, "the stream ended before its usage chunk"
            return usage.completion_tokens

        async def scenario(keep_alive: KeepAliveClient) -> list[int]:
            async with openai.AsyncOpenAI(
                base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120
            ) as client:
                began = asyncio.Semaphore(0)
                streams = [asyncio.create_task(stream(client, began)) for _ in range(num_streams)]
                for _ in range(num_streams):
                    await began.acquire()
                num_before = len(keep_alive.statuses)
                server.send_signal(signal.SIGTERM)
                while server.ready_status() != 503:
                    await asyncio.sleep(0.01)
                counts = await asyncio.gather(*streams)
                assert len(keep_alive.statuses) > num_before, "nothing was sent while draining"
                return counts

        with KeepAliveClient(server.url) as keep_alive:
            counts = asyncio.run(scenario(keep_alive))
            keep_alive.stop()
        assert counts == [num_tokens] * num_streams
        assert keep_alive.failures == []
        assert set(keep_alive.statuses) == {200}
        assert server.wait(30) == 0


def test_the_death_of_the_engine_is_told_to_clients_and_ends_the_server() -> None:
    with server_process("--max-model-len=2048") as server:
        server.wait_until_ready()
        body = {"prompt": "Once", "max_tokens": 1900, "ignore_eos": True}
        answers: list[httpx.Response] = []

        def ask() -> None:
            answers.append(httpx.post(f"{server.url}/v1/completions", json=body, timeout=60))

        asking = threading.Thread(target=ask)
        asking.start()
        stream = {**body, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=stream, timeout=60) as sse:
            lines = sse.iter_lines()
            next(lines)
            os.kill(server.engine_pid, signal.SIGKILL)
            rest = [line for line in lines if line.startswith("data: ")]
        asking.join()
        # A bound of the contract, not a measurement: the pod must restart soon.
        assert server.wait(5) == 1
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "engine_dead"
        assert answers[0].status_code == 503
        assert answers[0].json()["error"]["code"] == "engine_dead"
        assert "SIGKILL" not in answers[0].text  # internals are for the log
        assert "SIGKILL" in server.output


def truncated(tmp_path: Path) -> str:
    path = tmp_path / "cut.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\x01" * 40)
    return str(path)


def foreign(tmp_path: Path) -> str:
    path = tmp_path / "foreign.gguf"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    return str(path)


def unknown_architecture(tmp_path: Path) -> str:
    config = {"architectures": ["Mamba9ForCausalLM"], "model_type": "mamba9"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("make_model", "said"),
    [
        (lambda _: "/nowhere/at/all", "/nowhere/at/all"),
        (lambda _: "embedded://gpt-9", "embedded://smollm2-135m"),
        (lambda path: str(path), "config.json"),
        (truncated, "cut.gguf"),
        (foreign, "foreign.gguf"),
        (unknown_architecture, "Mamba9ForCausalLM"),
    ],
)
def test_a_model_that_cannot_be_served_is_one_clear_line(
    tmp_path: Path, make_model: object, said: str
) -> None:
    assert callable(make_model)
    with server_process(make_model(tmp_path)) as server:
        assert server.wait(60) == 1
        lines = [line for line in server.output.splitlines() if line.startswith("refectory: ")]
        assert len(lines) == 1
        assert said in lines[0]
        assert "Traceback" not in server.output


def test_the_start_tells_what_computes(server: ServerProcess) -> None:
    best = [f"native {level} on cpu, " for level in available_levels()] or ["torch "]
    assert f"runner: {best[-1]}" in server.output


def test_an_unknown_cpu_level_is_one_clear_line() -> None:
    with server_process(env={"REFECTORY_CPU_LEVEL": "sse9"}) as server:
        assert server.wait(60) == 1
        allowed = ", ".join([*available_levels(), "torch"])
        assert server.output.splitlines()[-1] == (
            f"refectory: REFECTORY_CPU_LEVEL is 'sse9'; allowed here: {allowed}"
        )
        assert "Traceback" not in server.output


def test_a_port_in_use_is_one_clear_line() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)), server_process(port=port) as server:
        assert server.wait(60) == 1
        last = server.output.splitlines()[-1]
        assert last.startswith("refectory: ")
        assert str(port) in last
        assert "--port" in last
        assert "Traceback" not in server.output
