"""Exceptions -> status codes and OpenAI's error object: the only place that knows both.

Does not know routes or the engine's insides. Bad input never ends as a 500; a 500 means that
something here is wrong, and only then is a traceback logged, which clients do not see.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from refectory_server.api.body import BodyStalled, BodyTooLarge
from refectory_server.api.lifecycle import Unavailable
from refectory_server.api.racing import ClientGone
from refectory_server.api.responses import ErrorBody, ErrorDetail, json_response
from refectory_server.api.sse import event
from refectory_server.api.wording import show
from refectory_server.errors import (
    DeadlineExceeded,
    EngineDead,
    InvalidRequest,
    ModelNotFound,
    PromptTooLong,
    QueueFull,
    RequestFailed,
    ServerError,
)

logger = logging.getLogger(__name__)

INVALID = "invalid_request_error"
SERVER = "server_error"
MAX_MESSAGE_CHARS = 1000
"""A value that a message repeats may be megabytes."""
ENGINE_DEAD_TEXT = "the engine is dead and the server about to end; another replica can serve this"


class Unauthorized(ServerError):
    """The request carries no key that this server knows."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An exception as a client sees it."""

    status: int
    body: ErrorBody
    headers: dict[str, str] = field(default_factory=dict)

    def response(self) -> Response:
        response = json_response(self.body, self.status)
        response.headers.update(self.headers)
        return response


def error_reply(error: Exception, *, request_id: str) -> ErrorReply:
    """The one map. The most special class comes first."""
    text = str(error)
    match error:
        case ModelNotFound():
            return _reply(404, text, INVALID, "model_not_found", param="model")
        case PromptTooLong():
            return _reply(400, text, INVALID, "context_length_exceeded", param=error.field)
        case InvalidRequest():
            return _reply(400, text, INVALID, None, param=error.field)
        case Unauthorized():
            headers = {"WWW-Authenticate": "Bearer"}
            return _reply(401, text, INVALID, "invalid_api_key", headers=headers)
        case BodyStalled():
            return _reply(408, text, INVALID, "request_timeout", headers={"Connection": "close"})
        case BodyTooLarge():
            return _reply(413, text, INVALID, "request_too_large")
        case QueueFull():
            headers = _retry_after(error.retry_after_s)
            return _reply(429, text, "rate_limit_error", "queue_full", headers=headers)
        case DeadlineExceeded():
            return _reply(503, text, SERVER, "deadline_exceeded")
        case EngineDead():
            # Its own text is for the operator's log: it may hold paths and internals.
            return _reply(503, ENGINE_DEAD_TEXT, SERVER, "engine_dead")
        case Unavailable():
            return _reply(503, text, SERVER, error.code, headers=_retry_after(error.retry_after_s))
        case _:
            # What went wrong is for the log: it may hold paths, internals and others' data.
            text = f"the request failed inside the server; its log says more under {request_id}"
            code = "request_failed" if isinstance(error, RequestFailed) else "internal_error"
            return _reply(500, text, SERVER, code)


def error_event(error: Exception, *, request_id: str) -> bytes:
    """The same error object as the last event of a stream that has begun."""
    reply = _logged_reply(error, request_id)
    return event(reply.body.model_dump_json())


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ServerError, _handle)
    app.add_exception_handler(404, _handle_no_route)
    app.add_exception_handler(405, _handle_wrong_method)
    app.add_exception_handler(ClientGone, _handle_client_gone)


class UnexpectedErrorMiddleware:
    """Answers what no handler knows with a 500 in the error object, and logs the traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_started = False

        async def watched_send(message: Message) -> None:
            nonlocal is_started
            is_started = is_started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception as error:
            if is_started or scope["type"] != "http":
                raise
            reply = _logged_reply(error, scope["state"]["request_id"])
            await reply.response()(scope, receive, send)


async def _handle(request: Request, error: Exception) -> Response:
    return _logged_reply(error, request.state.request_id).response()


def _logged_reply(error: Exception, request_id: str) -> ErrorReply:
    """A failure that is this server's own is logged with its traceback."""
    reply = error_reply(error, request_id=request_id)
    if reply.status == 500:
        logger.error("request %s failed: %s", request_id, error, exc_info=error)
    return reply


async def _handle_no_route(request: Request, error: Exception) -> Response:
    place = f"{request.method} {show(request.url.path)}"
    message = f"{place} is no route of this server"
    return _reply(404, message, INVALID, "not_found").response()


async def _handle_wrong_method(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    allow = dict(error.headers or {})
    message = f"{request.method} is not allowed here; allowed is {allow.get('Allow', 'nothing')}"
    return _reply(405, message, INVALID, "method_not_allowed", headers=allow).response()


async def _handle_client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it: nginx's code for the log


def _retry_after(seconds: int) -> dict[str, str]:
    return {"Retry-After": str(seconds)}


def _reply(
    status: int,
    message: str,
    type_: str,
    code: str | None,
    *,
    param: str | None = None,
    headers: dict[str, str] | None = None,
) -> ErrorReply:
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[:MAX_MESSAGE_CHARS] + "..."
    detail = ErrorDetail(message=message, type=type_, param=param, code=code)
    return ErrorReply(status, ErrorBody(error=detail), headers or {})
