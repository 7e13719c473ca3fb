"""`HttpServer`'s end: drains, stops, exit codes, and the port at the start."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from refectory_server.api.lifecycle import Lifecycle
from refectory_server.api.server import HttpServer
from refectory_server.config import ApiConfig
from refectory_server.errors import StartupError
from refectory_server.testing.raw_http import post, raw_connection, read_answer
from refectory_server.testing.simulated_app import (
    RunningServer,
    SimulatedApp,
    running_server,
    simulated_app,
)

pytestmark = pytest.mark.anyio

PATH = "/v1/completions"
BODY = {"prompt": "hi", "max_tokens": 8}
STREAM = {**BODY, "stream": True}


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what must happen; the test's own timeout is the limit."""
    while not condition():
        await asyncio.sleep(0.005)


@pytest.fixture
async def running(api: SimulatedApp) -> AsyncIterator[RunningServer]:
    async with running_server(api) as running:
        yield running


@pytest.fixture
async def web(running: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=running.url, timeout=30) as web:
        yield web


def error_code(line: str) -> str:
    return str(json.loads(line.removeprefix("data: "))["error"]["code"])


async def test_an_idle_server_drains_to_exit_code_0(
    running: RunningServer, web: httpx.AsyncClient
) -> None:
    assert (await web.get("/ready")).status_code == 200
    running.server.handle_signal(signal.SIGTERM)
    ready = await web.get("/ready")
    assert (ready.status_code, ready.json()) == (503, {"phase": "draining"})
    assert ready.headers["connection"] == "close"
    assert await running.exit_code == 0
    with pytest.raises(httpx.ConnectError):
        await web.get("/ready")


async def test_a_stream_and_a_whole_answer_live_through_a_drain(
    api: SimulatedApp,
    running: RunningServer,
    web: httpx.AsyncClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="refectory_server.api")
    assert (await web.post(PATH, json=BODY)).status_code == 200  # before the drain: not counted
    api.gate.close()
    api.gate.allow(2)
    async with web.stream("POST", PATH, json=STREAM) as sse:
        lines = sse.aiter_lines()
        first = await anext(lines)
        whole = asyncio.create_task(web.post(PATH, json=BODY))
        await until(lambda: api.engine.num_in_flight == 2)
        running.server.handle_signal(signal.SIGTERM)
        late = asyncio.create_task(web.post(PATH, json=BODY))
        await until(lambda: api.engine.num_in_flight == 3)
        load = (await web.get("/load")).json()
        assert (load["in_flight"], load["draining"]) == (3, True)
        assert (await api.samples())["refectory_draining", frozenset()] == 1
        api.gate.open()
        rest = [line async for line in lines if line]
    assert error_free([first, *rest])
    assert rest[-1] == "data: [DONE]"
    for answer in (await whole, await late):
        assert answer.status_code == 200
        assert answer.headers["connection"] == "close"
    assert await running.exit_code == 0
    first, last = caplog.messages
    assert first == "SIGTERM: draining 2 requests, up to 60 s"
    assert re.fullmatch(r"drained after \d+\.\d s: 3 requests were finished", last)


def error_free(lines: list[str]) -> bool:
    return not any('"error"' in line for line in lines)


async def test_idle_connections_are_closed_and_new_ones_are_served(
    running: RunningServer,
) -> None:
    async with (
        raw_connection(running.server.port) as (used_reader, used_writer),
        raw_connection(running.server.port) as (fresh_reader, fresh_writer),
    ):
        used_writer.write(post(PATH, BODY))
        status, headers, _ = await read_answer(used_reader)
        assert status == 200
        assert "connection" not in headers
        busy = asyncio.create_task(keep_busy(running))
        running.server.handle_signal(signal.SIGTERM)
        # Idle: closed, while others keep the server from leaving.
        assert await used_reader.read() == b""
        assert not running.exit_code.done()
        # Open all the while without a request: served.
        fresh_writer.write(post(PATH, BODY))
        status, headers, _ = await read_answer(fresh_reader)
        assert (status, headers["connection"]) == (200, "close")
        assert await fresh_reader.read() == b""
        busy.cancel()
        assert await running.exit_code == 0


async def keep_busy(running: RunningServer) -> None:
    async with httpx.AsyncClient(base_url=running.url, timeout=30) as client:
        while True:
            answer = await client.post(PATH, json=BODY)
            assert answer.status_code == 200
            await asyncio.sleep(0.05)


async def test_a_client_that_sends_on_meets_no_refusal_during_a_drain(
    running: RunningServer, web: httpx.AsyncClient
) -> None:
    statuses = []
    for i in range(60):
        if i == 20:
            running.server.handle_signal(signal.SIGTERM)
        statuses.append((await web.post(PATH, json=BODY)).status_code)
    assert statuses == [200] * 60
    assert await running.exit_code == 0


async def test_too_late_is_503_with_retry_after_while_probes_are_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = ApiConfig(host="127.0.0.1", port=0, shutdown_timeout=2.0)
    async with (
        simulated_app(api=config) as api,
        running_server(api) as running,
        httpx.AsyncClient(base_url=running.url, timeout=30) as web,
    ):
        api.gate.close()
        api.gate.allow(1)
        async with web.stream("POST", PATH, json=STREAM) as sse:
            lines = sse.aiter_lines()
            await anext(lines)
            whole = asyncio.create_task(web.post(PATH, json=BODY))
            await until(lambda: api.engine.num_in_flight == 2)
            running.server.handle_signal(signal.SIGTERM)
            await until(lambda: not api.lifecycle.accepts_requests)
            refused = await web.post(PATH, json=BODY)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "5"
            assert refused.headers["connection"] == "close"
            assert refused.json()["error"]["code"] == "shutting_down"
            assert (await web.get("/health")).status_code == 200
            samples = await api.samples()
            label = frozenset({("reason", "shutting_down")})
            assert samples["refectory_requests_rejected_total", label] == 1
            # The deadline passes: what is unfinished is told so.
            rest = [line async for line in lines if line]
        assert error_code(rest[-1]) == "shutting_down"
        answer = await whole
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        assert await running.exit_code == 0
        assert caplog.messages[-1].startswith("--shutdown-timeout is over after ")
        assert caplog.messages[-1].endswith(" s: 0 requests were finished, 2 are cut off")
        await until(lambda: api.engine.num_in_flight == 0)


@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ([signal.SIGINT], 130),
        ([signal.SIGTERM, signal.SIGTERM], 143),
        ([signal.SIGTERM, signal.SIGINT], 130),
        ([signal.SIGTERM, signal.SIGINT, signal.SIGTERM], 130),
    ],
)
async def test_a_stop_at_once_tells_everyone_in_flight(
    api: SimulatedApp,
    running: RunningServer,
    web: httpx.AsyncClient,
    signals: list[signal.Signals],
    code: int,
) -> None:
    api.gate.close()
    api.gate.allow(1)
    async with web.stream("POST", PATH, json=STREAM) as sse:
        lines = sse.aiter_lines()
        await anext(lines)
        waiting = [
            asyncio.create_task(web.post(PATH, json={**BODY, "stream": stream}))
            for stream in (False, True)
        ]
        async with raw_connection(running.server.port) as (reader, writer):
            writer.write(post(PATH, BODY)[:-5])  # still sending
            await until(lambda: api.lifecycle.num_in_flight == 4)
            await until(lambda: api.engine.num_in_flight == 3)
            for number in signals:
                running.server.handle_signal(number)
            rest = [line async for line in lines if line]
            assert error_code(rest[-1]) == "shutting_down"
            for answer in await asyncio.gather(*waiting):
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "shutting_down"
            status, _, body = await read_answer(reader)
            assert (status, json.loads(body)["error"]["code"]) == (503, "shutting_down")
    assert await running.exit_code == code


async def test_stop_with_a_code_of_the_callers(running: RunningServer) -> None:
    running.server.stop(7)
    running.server.stop(9)
    assert await running.exit_code == 7


async def test_signals_of_the_process_arrive(api: SimulatedApp) -> None:
    server = HttpServer(api.app, api.config.api, api.lifecycle)
    server.bind()
    serving = asyncio.create_task(server.serve())
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as web:
        assert (await web.get("/ready")).status_code == 200
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: api.lifecycle.is_draining)
        signal.raise_signal(signal.SIGINT)
        assert await serving == 130
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_port_in_use_is_one_line_with_host_port_and_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = ApiConfig(host="127.0.0.1", port=port)
        with pytest.raises(StartupError) as error:
            HttpServer(no_app, config, Lifecycle(60)).bind()
    assert error.value.reason == "PortInUse"
    assert str(error.value) == (
        f"port {port} on 127.0.0.1 is in use by another program; choose another with --port"
    )


@pytest.mark.parametrize("host", ["203.0.113.1", "no-such-host.invalid"])
def test_a_host_that_is_not_here_is_one_line(host: str) -> None:
    with pytest.raises(StartupError, match=f"cannot listen on {host} port 0") as error:
        HttpServer(no_app, ApiConfig(host=host, port=0), Lifecycle(60)).bind()
    assert error.value.reason == "CannotListen"


async def no_app(scope: object, receive: object, send: object) -> None:
    raise AssertionError("never called")
