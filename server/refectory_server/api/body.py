"""A request's body: read with limits, decoded as strict JSON.

Owns the limits of size, silence and shape (RFC 8259; NaN, Infinity and lone surrogates are no
JSON). Does not know what the fields mean.
"""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request

from refectory_server.api.racing import ClientGone
from refectory_server.errors import InvalidRequest, ServerError

MAX_BODY_BYTES = 16 * 1024 * 1024
BODY_STALL_S = 60.0
"""A client that sends nothing for this long in the middle of its body is answered with 408."""


class BodyTooLarge(ServerError):
    """The body is larger than `MAX_BODY_BYTES`."""


class BodyStalled(ServerError):
    """The rest of the body did not come."""


async def read_json_object(request: Request) -> dict[str, object]:
    """The body as a JSON object.

    Raises `InvalidRequest`, `BodyTooLarge` (also for a chunked body, while it is read),
    `BodyStalled`, or `ClientGone`.
    """
    return decode_json_object(await _read_body(request))


def decode_json_object(body: bytes) -> dict[str, object]:
    try:
        value = msgspec.json.decode(body)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    except RecursionError:
        raise InvalidRequest("the body is not valid JSON: it is nested too deeply") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body is a JSON {_json_type(value)}; it must be an object")
    return value


async def _read_body(request: Request) -> bytes:
    if _content_length(request) > MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    while True:
        try:
            async with asyncio.timeout(BODY_STALL_S):
                message = await request.receive()
        except TimeoutError:
            raise BodyStalled(f"the body stopped coming for {BODY_STALL_S:g} s") from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
        if not message.get("more_body", False):
            return bytes(body)


def _content_length(request: Request) -> int:
    text = request.headers.get("content-length", "0")
    # What the HTTP parser let through as a number of any length is only compared.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than the {MAX_BODY_BYTES} bytes allowed")


def _json_type(value: object) -> str:
    names = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")
