"""The middleware that ends old connections, so that clients with a pool find new replicas.

A response on a connection older than `--max-connection-age` says `Connection: close`: the client
knows before it sends again, and nothing is lost. Knows no routes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPENED_EXTENSION = "refectory.opened"
"""In a scope's extensions: when its connection was opened, in the clock's seconds."""


class ConnectionAgeMiddleware:
    def __init__(
        self,
        app: ASGIApp,
        max_age_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._max_age_s = max_age_s
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        opened = scope.get("extensions", {}).get(OPENED_EXTENSION)
        if opened is None:
            await self._app(scope, receive, send)
            return

        async def closing_send(message: Message) -> None:
            is_start = message["type"] == "http.response.start"
            # Judged as the response begins: its head is the last chance to tell.
            if is_start and self._clock() - opened > self._max_age_s:
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        await self._app(scope, receive, closing_send)
