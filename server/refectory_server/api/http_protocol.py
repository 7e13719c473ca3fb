"""`HttpProtocol`: one connection's HTTP/1.1, with limits on what comes before a body.

Owns the limits of size and time of a request's head (RFC 9112) and the refusal to upgrade. Does not
know routes; bodies are `body`'s.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from refectory_server.api.connection_age import OPENED_EXTENSION
from refectory_server.api.sse import ABORT_EXTENSION

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers; more, by at most what one read takes, is answered with 431."""
HEAD_STALL_S = 60.0
"""A connection is closed whose request line and headers take longer than this."""
_HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class HttpProtocol(HttpToolsProtocol):
    """httptools' HTTP/1.1 with limits; a response can drop its connection and know its age."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._opened = time.monotonic()
        self._num_head_bytes = 0
        self._has_progress = False
        self._head_timer: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._has_progress = False
        self._feed(data)
        # What yields no request, no body and no end belongs to a head (or to a chunk's, or to
        # trailers): httptools and uvicorn only collect it.
        if self._has_progress:
            self._num_head_bytes = 0
            return
        self._num_head_bytes += len(data)
        is_idle = self.cycle is None or self.cycle.response_complete
        if self._num_head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            if is_idle:
                self.transport.write(_HEAD_TOO_LARGE)
            self.transport.close()
        elif is_idle and self._head_timer is None:
            self._await_head()  # what came ended the keep-alive time

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()
        extensions: dict[str, Any] = {
            ABORT_EXTENSION: self.transport.abort,
            OPENED_EXTENSION: self._opened,
        }
        self.scope["extensions"] = extensions

    def on_headers_complete(self) -> None:
        self._has_progress = True
        self._stop_head_timer()
        if self._is_upgrade():  # the request begins again, without the offer
            self.scope["method"] = self.parser.get_method().decode()
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_progress = True
        if not self._is_upgrade():
            super().on_message_complete()

    def _feed(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                (num_read,) = upgrade.args
                self.parser = httptools.HttpRequestParser(self)
                data = self._head_without_upgrade() + data[num_read:]
            except httptools.HttpParserError:
                message = "Invalid HTTP request received."
                self.logger.warning(message)
                self.send_400_response(message)
                return

    def _is_upgrade(self) -> bool:
        """The parser takes what follows for another protocol's (CONNECT is an error anyway)."""
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def _head_without_upgrade(self) -> bytes:
        method, version = self.scope["method"], self.scope["http_version"]
        lines = [method.encode() + b" " + self.url + b" HTTP/" + version.encode()]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _await_head(self) -> None:
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(HEAD_STALL_S, self.transport.close)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
