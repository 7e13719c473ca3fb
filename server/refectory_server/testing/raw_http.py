"""Raw HTTP/1.1 over a socket, for what no client library would send or notice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

SMALL_SEGMENT = 536
"""Bytes: what every TCP takes (RFC 9293, section 3.7.1)."""


@asynccontextmanager
async def raw_connection(
    port: int, *, receive_buffer: int | None = None
) -> AsyncIterator[Connection]:
    """A connection to 127.0.0.1; `receive_buffer` is the kernel's, in bytes.

    With it, the kernel holds less than 100 KB for a reader that stalls, in place of megabytes.
    """
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        # The sender's buffer is some segments large, and loopback's segments are of 64 KB.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_SEGMENT)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    # A small limit: the reader takes nothing from the socket while nobody reads from it.
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def post(path: str, body: object, *headers: str) -> bytes:
    """A request with a JSON body."""
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Status, headers in lower case, and the body of an answer with a Content-Length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status_line, *lines = head.strip().split("\r\n")
    headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return int(status_line.split()[1]), headers, body
