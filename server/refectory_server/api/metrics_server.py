"""`MetricsServer`: the second port, for those who watch: metrics and probes, without keys.

Answers from before the model is loaded until the very end, like the main port. Knows no requests.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp

from refectory_server.api.http_protocol import HttpProtocol
from refectory_server.api.listener import ListeningServer, UvicornServer
from refectory_server.config import ApiConfig

_FLUSH_S = 1


class MetricsServer(ListeningServer):
    """`bind`, then `start`; `stop` at the end. All in one event loop."""

    def __init__(self, app: ASGIApp, config: ApiConfig, port: int) -> None:
        super().__init__(config.host, port, flag="--metrics-port")
        self._is_over = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._server = UvicornServer(
            app,
            self._wait_until_over,
            config,
            http=HttpProtocol,
            timeout_graceful_shutdown=_FLUSH_S,
        )

    def start(self) -> None:
        self._serving = asyncio.create_task(self._server.serve([self._bound_socket]))

    async def stop(self) -> None:
        """Safe to call without a start, and twice."""
        self._is_over.set()
        if self._serving is not None:
            await self._serving
        elif self._socket is not None:
            self._socket.close()

    async def _wait_until_over(self) -> None:
        await self._is_over.wait()
