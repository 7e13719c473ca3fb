"""Server-sent events: framing, keep-alive, and the response that streams them.

Owns one stream's way to its reader (WHATWG HTML, section 9.2 "Server-sent events"). Does not know
what the events say, nor the engine: it is given an async generator of ready frames.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import NoReturn

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from refectory_server.api.lifecycle import Lifecycle
from refectory_server.api.racing import (
    ClientGone,
    race,
    raise_when_disconnected,
    raise_when_stopped,
)

logger = logging.getLogger(__name__)

SSE_KEEP_ALIVE_S = 15.0
"""A comment goes out after this long without an event, so that proxies keep the connection."""
STALL_S = 60.0
"""A reader that takes nothing for this long is cut off."""
KEEP_ALIVE_COMMENT = b": keep-alive\n\n"
DONE_EVENT = b"data: [DONE]\n\n"
ABORT_EXTENSION = "refectory.abort"
"""Scope extension of `HttpServer`: a callable that drops the connection with what it holds."""
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the events otherwise
]


class ReaderStalled(Exception):
    """The reader took nothing for the whole stall time."""


def event(data: bytes | str) -> bytes:
    """Frame one event; `data` is JSON on one line."""
    return b"data: " + (data.encode() if isinstance(data, str) else data) + b"\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTimes:
    """Times of a stream in seconds."""

    keep_alive_s: float = SSE_KEEP_ALIVE_S
    stall_s: float = STALL_S


class EventStream(Response):
    """Streams frames until they end, the reader leaves or stalls, or the server stops.

    Headers go out with the first frame (or the first keep-alive comment), so that an exception
    before it still becomes a status code; after it, `error_event` turns the exception into the
    stream's last frame. The generator is closed in every case.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        lifecycle: Lifecycle,
        *,
        error_event: Callable[[Exception], bytes],
        times: StreamTimes,
    ) -> None:
        super().__init__()
        self._frames = frames
        self._lifecycle = lifecycle
        self._error_event = error_event
        self._times = times

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        channel = _Channel(send, self._times)
        try:
            await race(
                self._pump(channel),
                raise_when_disconnected(receive),
                raise_when_stopped(self._lifecycle),
                channel.watch(),
            )
        except ClientGone:
            pass
        except ReaderStalled:
            logger.info("a stream's reader took nothing for %g s: cut off", self._times.stall_s)
            await _abort_connection(scope)
        except Exception as error:
            if not channel.is_started:
                raise
            await channel.finish(scope, self._error_event(error))
        else:
            await channel.finish(scope)

    async def _pump(self, channel: _Channel) -> None:
        async with aclosing(self._frames) as frames:
            async for frame in frames:
                await channel.send(frame)


async def _abort_connection(scope: Scope) -> None:
    """Drop the connection at once: a reader that takes nothing would never see an orderly end."""
    abort = scope.get("extensions", {}).get(ABORT_EXTENSION)
    if abort is not None:
        abort()
        await asyncio.sleep(0)  # lets the server notice before the handler returns


class _Channel:
    """One response's `send`, with the time of what goes through it."""

    def __init__(self, send: Send, times: StreamTimes) -> None:
        self._send = send
        self._times = times
        self._clock = asyncio.get_running_loop().time
        self._last_sent = self._clock()
        self._sending_since: float | None = None
        self._lock = asyncio.Lock()
        self.is_started = False

    async def send(self, frame: bytes, *, more: bool = True) -> None:
        async with self._lock:
            self._sending_since = self._clock()
            if not self.is_started:
                self.is_started = True
                await self._send(
                    {"type": "http.response.start", "status": 200, "headers": list(_HEADERS)}
                )
            await self._send({"type": "http.response.body", "body": frame, "more_body": more})
            self._sending_since = None
            self._last_sent = self._clock()

    async def finish(self, scope: Scope, frame: bytes = b"") -> None:
        try:
            async with asyncio.timeout(self._times.stall_s):
                await self.send(frame, more=False)
        except TimeoutError:
            await _abort_connection(scope)

    async def watch(self) -> NoReturn:
        """Fill silences with comments; raise `ReaderStalled` when a send does not return."""
        times = self._times
        while True:
            now = self._clock()
            if self._sending_since is not None:
                wait_s = self._sending_since + times.stall_s - now
                if wait_s <= 0:
                    raise ReaderStalled
            else:
                wait_s = self._last_sent + times.keep_alive_s - now
                if wait_s <= 0:
                    await self._send_keep_alive()
                    continue
            await asyncio.sleep(min(wait_s, times.stall_s))

    async def _send_keep_alive(self) -> None:
        try:
            async with asyncio.timeout(self._times.stall_s):
                await self.send(KEEP_ALIVE_COMMENT)
        except TimeoutError:
            raise ReaderStalled from None
