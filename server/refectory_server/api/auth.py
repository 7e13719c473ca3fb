"""API keys: where they come from, and the middleware that asks for one.

Keys are compared as digests, all of them every time, so that the time of a refusal says nothing
about them; they are never logged.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from refectory_server.api.error_handlers import Unauthorized, error_reply
from refectory_server.config import ApiConfig
from refectory_server.errors import StartupError

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/openapi.json"})
"""For probes and Prometheus, which carry no key, and for tools that read how to send one."""


def load_api_keys(config: ApiConfig) -> tuple[str, ...]:
    """Keys of `--api-key` and `--api-key-file` (one a line); none: no key is asked for.

    Raises `StartupError` for a file that cannot be read or holds no key: the server would be
    open although it was meant not to be.
    """
    if config.api_key_file is None:
        return config.api_key
    try:
        text = Path(config.api_key_file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(
            f"--api-key-file {config.api_key_file} cannot be read: {error}", reason="BadApiKeyFile"
        ) from error
    keys = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not keys:
        raise StartupError(
            f"--api-key-file {config.api_key_file} holds no key; it needs one a line",
            reason="BadApiKeyFile",
        )
    return config.api_key + keys


class AuthMiddleware:
    """Lets a request through if it carries `Authorization: Bearer <one of the keys>`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._is_known(scope):
            await self._app(scope, receive, send)
            return
        error = Unauthorized("the request needs a valid key: Authorization: Bearer <key>")
        reply = error_reply(error, request_id=scope["state"]["request_id"])
        await reply.response()(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        header = Headers(scope=scope).get("authorization", "")
        scheme, _, key = header.partition(" ")
        # Starlette decodes headers as latin-1; this gets the bytes back.
        digest = _digest(key.strip().encode("latin-1"))
        is_known = False
        for known in self._digests:
            is_known |= hmac.compare_digest(digest, known)
        return is_known and scheme.lower() == "bearer"


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
