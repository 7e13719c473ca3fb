"""The middleware that counts requests in flight and turns late ones away during a drain.

Reports to `Lifecycle`. A request counts from the first byte of its handler to its last byte sent;
probes and metrics do not count, or a drain would wait for them.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from refectory_server.api.error_handlers import error_reply
from refectory_server.api.lifecycle import Lifecycle, Unavailable

UNCOUNTED_PATHS = frozenset({"/health", "/ready", "/metrics", "/load", "/version"})
"""Answered to the very end of a drain."""


class InFlightMiddleware:
    """`on_rejected` hears the reason of each refusal, for the metrics."""

    def __init__(
        self, app: ASGIApp, lifecycle: Lifecycle, on_rejected: Callable[[str], None]
    ) -> None:
        self._app = app
        self._lifecycle = lifecycle
        self._on_rejected = on_rejected

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def closing_send(message: Message) -> None:
            if message["type"] == "http.response.start" and self._lifecycle.is_draining:
                # The client's next request shall go to another replica.
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        if scope["path"] in UNCOUNTED_PATHS:
            await self._app(scope, receive, closing_send)
            return
        try:
            self._lifecycle.request_started()
        except Unavailable as error:
            self._on_rejected(error.code)
            reply = error_reply(error, request_id=scope["state"]["request_id"])
            await reply.response()(scope, receive, closing_send)
            return
        try:
            await self._app(scope, receive, closing_send)
        finally:
            self._lifecycle.request_finished()
