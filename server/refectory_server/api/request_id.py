"""`X-Request-Id`: taken from the client or made here, and sent back on every response."""

from __future__ import annotations

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
_ACCEPTABLE = re.compile(r"[\x21-\x7e]{1,128}")
"""Printable ASCII; anything else would be no header value or no log line."""


class RequestIdMiddleware:
    """Puts the id into `scope["state"]` and onto the response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if _ACCEPTABLE.fullmatch(given) else secrets.token_hex(16)
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


def engine_request_id(request: Request, prefix: str) -> str:
    """A unique id that begins with `prefix` and holds the client's: clients repeat theirs."""
    return f"{prefix}-{request.state.request_id}-{secrets.token_hex(8)}"
