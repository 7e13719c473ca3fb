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
MAX_VALUES = 2**21
MAX_TEXTS_AND_LISTS = 2**17
"""Strings, lists and objects among the values: they take the most time and memory by far."""
BODY_STALL_S = 60.0
"""A client that sends nothing for this long in the middle of its body is answered with 408."""


class BodyTooLarge(ServerError):
    """The body is larger than `MAX_BODY_BYTES`."""


class BodyStalled(ServerError):
    """The rest of the body did not come."""


async def read_body(request: Request) -> bytes:
    """Raises `BodyTooLarge` (also for a chunked body, while it is read), `BodyStalled`, or
    `ClientGone`.
    """
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


def decode_json_object(body: bytes) -> dict[str, object]:
    """May take a tenth of a second for the largest bodies: for a thread.

    Raises `InvalidRequest` for what is no object, and for more values than anyone needs.
    """
    _check_num_values(body)
    try:
        value = msgspec.json.decode(body)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    except RecursionError:
        raise InvalidRequest("the body is not valid JSON: it is nested too deeply") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body is a JSON {_json_type(value)}; it must be an object")
    return value


def _check_num_values(body: bytes) -> None:
    """Before they are made, which keeps every thread waiting: millions take seconds."""
    if len(body) < 2 * MAX_TEXTS_AND_LISTS:
        return  # none is shorter than two bytes
    # Without escaped quotes, every second piece between quotes is outside of all strings.
    quoted = body.replace(rb"\\", b"").replace(rb"\"", b"")
    num_texts = quoted.count(b'"') // 2
    if num_texts > MAX_TEXTS_AND_LISTS:
        raise _too_many(num_texts, "strings", MAX_TEXTS_AND_LISTS)
    outside = b"".join(quoted.split(b'"')[::2])
    num_texts_and_lists = num_texts + outside.count(b"[") + outside.count(b"{")
    if num_texts_and_lists > MAX_TEXTS_AND_LISTS:
        raise _too_many(num_texts_and_lists, "strings, lists and objects", MAX_TEXTS_AND_LISTS)
    num_values = outside.count(b",") + 1
    if num_values > MAX_VALUES:
        raise _too_many(num_values, "values", MAX_VALUES)


def _too_many(count: int, what: str, limit: int) -> InvalidRequest:
    return InvalidRequest(f"the body holds {count} {what}; at most {limit} are allowed")


def _content_length(request: Request) -> int:
    text = request.headers.get("content-length", "0")
    # What the HTTP parser let through as a number of any length is only compared.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than the {MAX_BODY_BYTES} bytes allowed")


def _json_type(value: object) -> str:
    names = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")
