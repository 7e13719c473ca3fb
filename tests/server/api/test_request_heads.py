"""What comes before a body: heads without end, heads that stop coming, offers to upgrade."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

import refectory_server.api.http_protocol
from refectory_server.testing.raw_http import Connection, post, raw_connection, read_answer
from refectory_server.testing.simulated_app import RunningServer, running_server, simulated_app

pytestmark = pytest.mark.anyio

LIMIT = 64 * 1024
MOST = 1024 * 1024
"""The limit, and more than what is on its way when it is noticed."""
TWO_TOKENS = {"prompt": "hi", "max_tokens": 2}
H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    async with simulated_app() as api, running_server(api) as running:
        yield running


async def send_without_end(connection: Connection, start: bytes, piece: bytes) -> tuple[int, bytes]:
    """Bytes sent until the server closed (or `MOST` and some), and what it answered."""
    reader, writer = connection
    writer.write(start)
    num_sent = 0
    with contextlib.suppress(ConnectionError):
        while num_sent < 4 * MOST and not reader.at_eof():
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
            num_sent += len(piece)
    answer = b""
    with contextlib.suppress(ConnectionError):
        answer = await reader.read()
    return num_sent, answer


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET /", b"a" * 8192),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: ", b"a" * 8192),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n", b"X-More: x\r\n" * 800),
        (b"", b"\r\n" * 4096),
    ],
    ids=["url", "one header", "many headers", "empty lines"],
)
async def test_a_head_without_end_is_cut_off(
    server: RunningServer, start: bytes, piece: bytes
) -> None:
    async with raw_connection(server.server.port) as connection:
        num_sent, _ = await send_without_end(connection, start, piece)
    assert LIMIT <= num_sent < 4 * MOST


async def test_a_head_over_64_kib_is_431(server: RunningServer) -> None:
    async with raw_connection(server.server.port) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: ")
        writer.write(b"a" * LIMIT)  # all of it is read when the server closes: no reset
        status, headers, _ = await read_answer(reader)
        assert (status, headers["connection"]) == (431, "close")
        assert await reader.read() == b""


async def test_trailers_without_end_are_cut_off(server: RunningServer) -> None:
    start = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    async with raw_connection(server.server.port) as connection:
        num_sent, _ = await send_without_end(connection, start, b"X-More: x\r\n" * 800)
    assert LIMIT <= num_sent < 4 * MOST


async def test_large_heads_are_served_one_after_another(server: RunningServer) -> None:
    async with raw_connection(server.server.port) as (reader, writer):
        for _ in range(4):
            writer.write(post("/v1/completions", TWO_TOKENS, f"X-Long: {'a' * (LIMIT - 2000)}"))
            assert (await read_answer(reader))[0] == 200


@pytest.mark.parametrize(
    ("is_first", "start"),
    [
        (True, b""),
        (True, b"\r\n"),
        (True, b"GET /health HTTP/1.1\r\nHost:"),
        (False, b"\r\n"),
        (False, b"GET /health HTTP/1.1\r\nHost:"),
    ],
)
async def test_a_head_that_stops_coming_ends_its_connection(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, is_first: bool, start: bytes
) -> None:
    monkeypatch.setattr(refectory_server.api.http_protocol, "HEAD_STALL_S", 0.05)
    async with raw_connection(server.server.port) as (reader, writer):
        if not is_first:
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await read_answer(reader))[0] == 200
        writer.write(start)
        assert await reader.read() == b""


async def test_an_offered_upgrade_is_ignored_and_its_request_served(server: RunningServer) -> None:
    request = post("/v1/completions", TWO_TOKENS, *H2C)
    plain = post("/v1/completions", TWO_TOKENS)
    async with raw_connection(server.server.port) as (reader, writer):
        writer.write(request + request[:-5])
        assert (await read_answer(reader))[0] == 200
        writer.write(request[-5:] + plain)
        for _ in range(2):
            status, _, body = await read_answer(reader)
            assert (status, b'"finish_reason":"length"' in body) == (200, True)
