"""`MetricsServer`: the second port, for those who watch: metrics and probes, without keys.

Answers from before the model is loaded until the very end, like the main port. Knows no requests.
"""

from __future__ import annotations

import asyncio
import socket

from starlette.types import ASGIApp

from refectory_server.api.http_protocol import HttpProtocol
from refectory_server.api.listener import UvicornServer, listen
from refectory_server.config import ApiConfig

_FLUSH_S = 1


class MetricsServer:
    """`bind`, then `start`; `stop` at the end. All in one event loop."""

    def __init__(self, app: ASGIApp, config: ApiConfig, port: int) -> None:
        self._address = (config.host, port)
        self._socket: socket.socket | None = None
        self._is_over = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._server = UvicornServer(
            app,
            self._wait_until_over,
            config,
            http=HttpProtocol,
            timeout_graceful_shutdown=_FLUSH_S,
        )

    @property
    def port(self) -> int:
        """The port bound, also where 0 was asked for."""
        if self._socket is None:
            raise RuntimeError("bind() comes before port")
        return int(self._socket.getsockname()[1])

    def bind(self) -> None:
        """Open the port. Raises `StartupError` in one line."""
        self._socket = listen(*self._address, flag="--metrics-port")

    def start(self) -> None:
        if self._socket is None:
            raise RuntimeError("bind() comes before start()")
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        """Safe to call without a start, and twice."""
        self._is_over.set()
        if self._serving is not None:
            await self._serving
        elif self._socket is not None:
            self._socket.close()

    async def _wait_until_over(self) -> None:
        await self._is_over.wait()
