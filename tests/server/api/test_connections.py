"""Real sockets: readers that leave, stall or wait, bodies that do not end, malformed requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

import refectory_server.api.body
from refectory_server.api.sse import StreamTimes
from refectory_server.testing.raw_http import post, raw_connection
from refectory_server.testing.simulated_app import (
    RunningServer,
    SimulatedApp,
    running_server,
    simulated_app,
)
from refectory_server.testing.simulated_engine import small_facts

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}
LONG = {"prompt": "hi", "max_tokens": 400}
ABORTED = ("vllm:request_success_total", frozenset({("finished_reason", "abort")}))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what must happen; the test's own timeout is the limit."""
    while not condition():
        await asyncio.sleep(0.005)


@pytest.fixture
async def running(api: SimulatedApp) -> AsyncIterator[RunningServer]:
    async with running_server(api) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_steps", [0, 3])
async def test_a_client_that_leaves_aborts_its_request(
    api: SimulatedApp, running: RunningServer, stream: bool, num_steps: int
) -> None:
    api.gate.close()
    async with raw_connection(running.server.port) as (_, writer):
        writer.write(post("/v1/completions", {**LONG, "stream": stream}))
        await until(lambda: api.engine.num_in_flight == 1)
        api.gate.allow(num_steps)
    await until(lambda: api.engine.num_in_flight == 0)
    await until(lambda: api.lifecycle.num_in_flight == 0)
    api.gate.open()
    await until(lambda: not api.behind.core.has_work)
    assert (await api.samples())[ABORTED] == 1
    assert api.engine.stats.kv_cache_usage == 0
    assert api.behind.runner.num_states <= 1  # told with the next step's work


async def test_a_client_that_leaves_while_it_sends_is_forgotten(
    api: SimulatedApp, running: RunningServer
) -> None:
    async with raw_connection(running.server.port) as (_, writer):
        writer.write(post("/v1/completions", LONG)[:-5])
        await until(lambda: api.lifecycle.num_in_flight == 1)
    await until(lambda: api.lifecycle.num_in_flight == 0)
    assert api.engine.num_in_flight == 0


async def test_keep_alive_comments_fill_the_silence() -> None:
    async with (
        simulated_app(times=StreamTimes(keep_alive_s=0.05)) as api,
        running_server(api) as running,
        raw_connection(running.server.port) as (reader, writer),
    ):
        api.gate.close()
        writer.write(post("/v1/chat/completions", {"messages": [USER], "stream": True}))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        for _ in range(3):
            await reader.readuntil(b": keep-alive\n\n")
        api.gate.allow(1)
        await reader.readuntil(b'"role":"assistant"')
        await reader.readuntil(b": keep-alive\n\n")


async def test_an_error_after_a_keep_alive_is_an_event_and_the_end() -> None:
    async with (
        simulated_app(times=StreamTimes(keep_alive_s=0.05)) as api,
        running_server(api) as running,
        httpx.AsyncClient(base_url=running.url) as client,
    ):
        api.gate.close()
        async with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as sse:
            assert sse.status_code == 200
            lines = sse.aiter_lines()
            assert await anext(lines) == ": keep-alive"
            api.lifecycle.stop()
            rest = [line async for line in lines if line and line != ": keep-alive"]
        [event] = rest
        assert json.loads(event.removeprefix("data: "))["error"]["code"] == "shutting_down"


async def test_a_reader_that_stalls_is_cut_off_and_its_request_aborted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="refectory_server")
    caplog.set_level("INFO", logger="uvicorn")
    facts = small_facts(num_blocks=4096)
    async with (
        simulated_app(facts=facts, times=StreamTimes(stall_s=0.2)) as api,
        running_server(api) as running,
        raw_connection(running.server.port, receive_buffer=2048) as (reader, writer),
    ):
        caplog.clear()  # what the start said
        # A long id makes long chunks: the kernel's buffers on the way fill up sooner.
        body = {**LONG, "max_tokens": 60_000, "stream": True}
        writer.write(post("/v1/completions", body, f"X-Request-Id: {'x' * 128}"))
        await reader.readuntil(b"\r\n\r\n")
        await until(lambda: api.lifecycle.num_in_flight == 0)
        assert api.engine.num_in_flight == 0
        assert (await api.samples())[ABORTED] == 1
        received = b""
        while piece := await reader.read(65536):
            received += piece
        assert received.startswith(b"data: ", received.index(b"\r\n") + 2)
        assert b"[DONE]" not in received
        assert not received.endswith(b"0\r\n\r\n")  # no orderly end
    sources = [record.name.removeprefix("refectory_server.") for record in caplog.records]
    assert sorted(sources) == ["api.sse", "engine.async_engine"]


async def test_a_slow_but_steady_reader_gets_everything() -> None:
    async with (
        simulated_app(times=StreamTimes(keep_alive_s=0.05, stall_s=0.5)) as api,
        running_server(api) as running,
        raw_connection(running.server.port, receive_buffer=2048) as (reader, writer),
    ):
        writer.write(post("/v1/completions", {**LONG, "stream": True}, "Connection: close"))
        received = b""
        while piece := await reader.read(2048):
            received += piece
            await asyncio.sleep(0.001)
        assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_over_16_mib_is_refused_while_it_is_read(
    running: RunningServer, is_chunked: bool
) -> None:
    async with raw_connection(running.server.port) as (reader, writer):
        size = 16 * 1024 * 1024 + 1
        head = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {size}"
        writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
        if is_chunked:
            piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
            for _ in range(17):
                writer.write(piece)
                await writer.drain()
        assert await reader.readline() == b"HTTP/1.1 413 Request Entity Too Large\r\n"
        assert b'"code":"request_too_large"' in await reader.readuntil(b"}}")


async def test_a_body_that_stops_coming_is_408(
    running: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refectory_server.api.body, "BODY_STALL_S", 0.05)
    async with raw_connection(running.server.port) as (reader, writer):
        writer.write(post("/v1/completions", LONG)[:-5])
        assert await reader.readline() == b"HTTP/1.1 408 Request Timeout\r\n"
        answer = await reader.read()
        assert b"connection: close\r\n" in answer
        assert b'"code":"request_timeout"' in answer


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_no_http_is_400_and_closed(
    running: RunningServer, request_bytes: bytes
) -> None:
    async with raw_connection(running.server.port) as (reader, writer):
        writer.write(request_bytes)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    async with httpx.AsyncClient(base_url=running.url) as client:
        assert (await client.get("/health")).status_code == 200
