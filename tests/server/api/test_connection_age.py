"""`--max-connection-age`: old connections end with a response, and no client notices."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from refectory_server.api.connection_age import OPENED_EXTENSION, ConnectionAgeMiddleware
from refectory_server.config import ApiConfig
from refectory_server.testing.raw_http import post, raw_connection, read_answer
from refectory_server.testing.simulated_app import running_server, simulated_app

pytestmark = pytest.mark.anyio

BODY = {"prompt": "hi", "max_tokens": 3}


@pytest.mark.parametrize(("now", "header"), [(160.0, None), (160.1, "close")])
async def test_a_response_begins_the_end_once_the_connection_is_older(
    now: float, header: str | None
) -> None:
    async def with_extension(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"] = {OPENED_EXTENSION: 100.0}
        await ConnectionAgeMiddleware(PlainTextResponse("ok"), 60.0, clock=lambda: now)(
            scope, receive, send
        )

    transport = httpx.ASGITransport(with_extension)
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        answer = await client.get("/")
    assert answer.text == "ok"
    assert answer.headers.get("connection") == header


def server_with(age_s: float) -> ApiConfig:
    return ApiConfig(host="127.0.0.1", port=0, max_connection_age=age_s)


async def test_an_old_connection_is_closed_after_its_response() -> None:
    async with (
        simulated_app(api=server_with(0.05)) as api,
        running_server(api) as running,
        raw_connection(running.server.port) as (reader, writer),
    ):
        await asyncio.sleep(0.1)
        writer.write(post("/v1/completions", BODY))
        status, headers, body = await read_answer(reader)
        assert (status, headers["connection"]) == (200, "close")
        assert b'"text"' in body
        assert await reader.read() == b""


@pytest.mark.parametrize(("age_s", "is_closed"), [(0.0, False), (600.0, False), (0.001, True)])
async def test_a_pool_keeps_young_connections_and_replaces_old_ones(
    age_s: float, is_closed: bool
) -> None:
    async with (
        simulated_app(api=server_with(age_s)) as api,
        running_server(api) as running,
        httpx.AsyncClient(base_url=running.url) as client,
    ):
        connections: set[object] = set()
        for _ in range(5):
            await asyncio.sleep(0.01)
            answer = await client.post("/v1/completions", json=BODY)
            assert answer.status_code == 200
            assert answer.headers.get("connection") == ("close" if is_closed else None)
            connections.add(answer.extensions["network_stream"])
        assert len(connections) == (5 if is_closed else 1)


async def test_a_stream_is_never_cut_by_its_connections_age() -> None:
    async with (
        simulated_app(api=server_with(0.5)) as api,
        running_server(api) as running,
        httpx.AsyncClient(base_url=running.url) as client,
    ):
        api.gate.close()
        api.gate.allow(1)
        body = {**BODY, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as sse:
            assert "connection" not in sse.headers
            lines = sse.aiter_lines()
            await asyncio.sleep(0.6)
            api.gate.open()
            assert [line async for line in lines if line][-1] == "data: [DONE]"
        answer = await client.post("/v1/completions", json=BODY)
        assert answer.headers["connection"] == "close"
