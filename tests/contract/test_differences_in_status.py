"""docs/differences-from-vllm.md: every status code that it tells is that of a real request."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

import refectory_server.api.body
from refectory_server.api.app import create_app
from refectory_server.api.lifecycle import Lifecycle
from refectory_server.config import ApiConfig, SchedulerConfig, ServerConfig
from refectory_server.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from refectory_server.engine.async_engine import AsyncEngine
from refectory_server.metrics import ServerMetrics
from refectory_server.runner.interface import ModelRunner, RunnerFacts
from refectory_server.testing.markdown_table import quoted, table_rows
from refectory_server.testing.raw_http import raw_connection, read_answer
from refectory_server.testing.simulated_app import (
    SimulatedApp,
    client_of,
    running_server,
    simulated_app,
)
from refectory_server.testing.simulated_engine import simulated_engine

pytestmark = pytest.mark.anyio

PAGE = (Path(__file__).parents[2] / "docs" / "differences-from-vllm.md").read_text()
PATH = "/v1/completions"
BODY: dict[str, Any] = {"prompt": "hi", "max_tokens": 2}
SHUTDOWN_TIMEOUT_S = 60.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def answer_to(**changed: Any) -> httpx.Response:
    async with simulated_app() as api:
        return await api.client.post(PATH, json=BODY | changed)


async def answer_of(method: str, path: str) -> httpx.Response:
    async with simulated_app() as api:
        return await api.client.request(method, path)


async def a_body_without_a_type() -> httpx.Response:
    async with simulated_app() as api:
        return await api.client.post(PATH, content=json.dumps(BODY))


async def a_wrong_key() -> httpx.Response:
    async with simulated_app(api=ApiConfig(api_key=("right",))) as api:
        for path in ("/health", "/ready", "/metrics"):
            assert (await api.client.get(path)).status_code == 200
        assert (await api.client.get("/load")).status_code == 401
        headers = {"Authorization": "Bearer wrong"}
        return await api.client.post(PATH, json=BODY, headers=headers)


async def asgi_answer(api: SimulatedApp, receive: Callable[[], Awaitable[Any]]) -> httpx.Response:
    """To a request that no well-behaved client sends."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": PATH, "query_string": b"", "headers": []}
    await api.app(scope, receive, send)
    start, *bodies = sent
    return httpx.Response(
        start["status"],
        headers=start["headers"],
        content=b"".join(message.get("body", b"") for message in bodies),
    )


async def a_stalled_body() -> httpx.Response:
    pieces = [{"type": "http.request", "body": b'{"prompt"', "more_body": True}]

    async def receive() -> Any:
        return pieces.pop() if pieces else await asyncio.Event().wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refectory_server.api.body, "BODY_STALL_S", 0.01)
        async with simulated_app() as api:
            return await asgi_answer(api, receive)


async def a_client_that_leaves() -> httpx.Response:
    async with simulated_app() as api:
        api.gate.close()
        whole = {"type": "http.request", "body": json.dumps(BODY).encode()}
        pieces: list[dict[str, Any]] = [{"type": "http.disconnect"}, whole]

        async def receive() -> Any:
            while len(pieces) == 1 and not api.engine.num_in_flight:
                await asyncio.sleep(0)
            return pieces.pop()

        answer = await asgi_answer(api, receive)
        assert api.engine.num_in_flight == 0
        return answer


async def a_long_body() -> httpx.Response:
    async with simulated_app() as api:
        return await api.client.post(PATH, content=b" " * (16 * 2**20 + 1))


async def a_long_head() -> httpx.Response:
    async with (
        simulated_app() as api,
        running_server(api) as running,
        raw_connection(running.server.port) as (reader, writer),
    ):
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 2**16)
        status, headers, body = await read_answer(reader)
        return httpx.Response(status, headers=headers, content=body)


async def answer_behind(
    api: SimulatedApp, body: dict[str, Any], num_choices: int
) -> httpx.Response:
    """To a request that arrives while `body` with its choices is in the engine."""
    api.gate.close()
    first = asyncio.create_task(api.client.post(PATH, json=body))
    while api.engine.num_in_flight < num_choices:
        await asyncio.sleep(0)
    second = asyncio.create_task(api.client.post(PATH, json=BODY))
    while api.engine.num_in_flight == num_choices and not second.done():
        await asyncio.sleep(0)
    await asyncio.sleep(api.config.api.request_timeout or 0)
    api.gate.open()
    assert (await first).status_code == 200
    return await second


async def a_full_queue() -> httpx.Response:
    limits = SchedulerConfig(max_num_seqs=1, max_num_queued_reqs=1)
    async with simulated_app(scheduler=limits) as api:
        return await answer_behind(api, BODY | {"prompt": ["a", "b"]}, 2)


async def a_long_wait() -> httpx.Response:
    limits = SchedulerConfig(max_num_seqs=1)
    async with simulated_app(api=ApiConfig(request_timeout=0.1), scheduler=limits) as api:
        return await answer_behind(api, BODY, 1)


class FailingRunner:
    """Cannot sample for anyone."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    @property
    def facts(self) -> RunnerFacts:
        return self._runner.facts

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        output = self._runner.execute_model(scheduler_output)
        return ModelRunnerOutput({}, dict.fromkeys(output.sampled_token_ids, "not a number"))


async def answer_over(**engine: Any) -> httpx.Response:
    """Of an app over an engine made with these options."""
    metrics = ServerMetrics(CollectorRegistry(), "sim")
    async with simulated_engine(observer=metrics, **engine) as behind:
        app = create_app(behind.engine, ServerConfig(), metrics, Lifecycle(60))
        async with client_of(app) as client:
            return await client.post(PATH, json=BODY)


async def a_failed_request() -> httpx.Response:
    return await answer_over(wrap_runner=FailingRunner)


async def a_dead_engine() -> httpx.Response:
    def explode(_: SchedulerOutput) -> float:
        raise MemoryError

    return await answer_over(step_seconds=explode)


class LoadingClient:
    """An engine client whose engine goes on loading."""

    async def start(self, on_step: object, on_status: object) -> None:
        pass


async def a_loading_server() -> httpx.Response:
    metrics = ServerMetrics(CollectorRegistry(), "sim")

    async def never(_: RunnerFacts) -> Any:
        raise AssertionError

    engine = AsyncEngine(LoadingClient(), metrics, never)  # type: ignore[arg-type]
    await engine.start()
    async with client_of(create_app(engine, ServerConfig(), metrics, Lifecycle(60))) as client:
        assert (await client.get("/health")).status_code == 200
        ready = await client.get("/ready")
        assert (ready.status_code, ready.json()["phase"]) == (503, "starting")
        return await client.post(PATH, json=BODY)


async def in_flight_at_sigterm() -> httpx.Response:
    async with simulated_app() as api:
        api.gate.close()
        asking = asyncio.create_task(api.client.post(PATH, json=BODY))
        while not api.engine.num_in_flight:
            await asyncio.sleep(0)
        api.lifecycle.drain()
        api.gate.open()
        return await asking


async def seconds_into_the_drain(seconds: float) -> httpx.Response:
    now = 0.0
    lifecycle = Lifecycle(SHUTDOWN_TIMEOUT_S, clock=lambda: now)
    async with simulated_app(lifecycle=lifecycle) as api:
        lifecycle.drain()
        now = seconds
        return await api.client.post(PATH, json=BODY)


CASES: dict[str, Callable[[], Awaitable[httpx.Response]]] = {
    "a wrong value, type or body": lambda: answer_to(n="two"),
    "a field that is not supported": lambda: answer_to(prompt_embeds="x"),
    "the prompt is longer than the context": lambda: answer_to(prompt="x" * 513),
    "a body that is not said to be JSON": a_body_without_a_type,
    "no key, or a wrong one": a_wrong_key,
    "an unknown model": lambda: answer_to(model="other"),
    "an unknown route": lambda: answer_of("GET", "/nowhere"),
    "another method": lambda: answer_of("GET", PATH),
    "a body that stops coming": a_stalled_body,
    "a body over 16 MiB": a_long_body,
    "a head over 64 KiB": a_long_head,
    "the queue is full": a_full_queue,
    "waited longer than allowed": a_long_wait,
    "one request fails": a_failed_request,
    "while loading": a_loading_server,
    "the engine is dead": a_dead_engine,
    "in flight at SIGTERM": in_flight_at_sigterm,
    "after SIGTERM": lambda: seconds_into_the_drain(1),
    "just before the end of `--shutdown-timeout`": lambda: seconds_into_the_drain(55),
    "the client leaves": a_client_that_leaves,
}


@pytest.mark.parametrize(
    ("case", "here"), [(case, here) for case, here, _ in table_rows(PAGE, "Status codes")]
)
async def test_a_status_is_as_told(case: str, here: str) -> None:
    answer = await CASES[case]()
    assert f"{answer.status_code}" == here[:3], answer.text
    error = answer.json()["error"] if answer.status_code >= 400 and answer.content else {}
    for word in quoted(here):
        if word == "param":
            assert error[word] == "n"
        elif re.fullmatch("[a-z_]+", word):
            assert error["code"] == word
        elif not word.startswith("/"):
            name, _, value = word.partition(": ")
            assert value in answer.headers[name]


def test_every_case_is_told_once() -> None:
    assert [case for case, _, _ in table_rows(PAGE, "Status codes")] == list(CASES)


async def events(**changed: Any) -> list[Any]:
    """A stream's events as JSON, the words in place of it as they are."""
    answer = await answer_to(stream=True, **changed)
    assert answer.status_code == 200
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    return [json.loads(line) if line.startswith("{") else line for line in lines]


async def test_streams_and_errors_are_as_told() -> None:
    told = {what: here for what, here, _ in table_rows(PAGE, "Fields of answers", table=1)}
    details = (await answer_to()).json()["usage"]["prompt_tokens_details"]
    assert told.pop("`prompt_tokens_details`") == "always"
    assert details["cached_tokens"] == 0

    error = (await answer_to(model="other")).json()["error"]
    assert told.pop("`code` of an error") == "a word or null"
    assert (error["code"], (await answer_to(n=0)).json()["error"]["code"]) == (
        "model_not_found",
        None,
    )
    assert quoted(told.pop("`type` of an error")) == [error["type"]]

    *chunks, usage, done = await events(stream_options={"include_usage": True})
    assert (usage["choices"], done) == ([], "[DONE]")
    last = chunks[-1]["choices"][0]
    assert told.pop("a choice's last chunk in a stream") == "`finish_reason` and no text"
    assert (last["finish_reason"], last["text"]) == ("length", "")
    assert quoted(told.pop("chunks before the usage chunk")) == ["usage: null"]
    assert all(chunk["usage"] is None for chunk in chunks)

    assert quoted(told.pop("a stream that fails")) == ["[DONE]"]
    early = await answer_over(wrap_runner=FailingRunner)
    assert early.status_code == 500
    assert not told
