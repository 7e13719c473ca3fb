"""How much one body may hold: what is too much is refused before it is decoded or looked at."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from refectory_server.api.body import (
    MAX_BODY_BYTES,
    MAX_TEXTS_AND_LISTS,
    MAX_VALUES,
    decode_json_object,
)
from refectory_server.api.parsing import parse, parse_generation
from refectory_server.api.protocol import ChatCompletionRequest, TokenizeRequest
from refectory_server.errors import InvalidRequest
from refectory_server.testing.simulated_engine import FACTS

MAX_LEN = FACTS.max_model_len


class Looked(dict[str, Any]):
    """A message that tells when its fields are looked at."""

    num_looked = 0

    def items(self) -> Any:
        type(self).num_looked += 1
        return super().items()


@pytest.fixture(autouse=True)
def _nothing_looked_at() -> None:
    Looked.num_looked = 0


def messages(num_messages: int, num_parts: int | None = None) -> list[Looked]:
    """`num_parts`: of each message; None: its content is a string."""
    part = {"type": "text", "text": ""}
    content: Any = "" if num_parts is None else [part] * num_parts
    return [Looked(role="user", content=content) for _ in range(num_messages)]


@pytest.mark.parametrize(
    ("num_messages", "num_parts", "count"),
    [
        (MAX_LEN + 1, None, MAX_LEN + 1),
        (20_000, None, 20_000),
        (1, MAX_LEN + 1, MAX_LEN + 1),
        (16, 40, 640),
    ],
)
def test_more_texts_than_the_context_has_tokens_are_counted_and_not_looked_at(
    num_messages: int, num_parts: int | None, count: int
) -> None:
    body = {"messages": messages(num_messages, num_parts)}
    with pytest.raises(InvalidRequest) as caught:
        parse_generation(ChatCompletionRequest, body, max_model_len=MAX_LEN)
    assert caught.value.field == "messages"
    assert str(caught.value) == (
        f"messages has {count} texts; at most {MAX_LEN} are allowed: the context is {MAX_LEN} "
        "tokens"
    )
    with pytest.raises(InvalidRequest):
        parse(TokenizeRequest, body, max_model_len=MAX_LEN)
    assert Looked.num_looked == 0


@pytest.mark.parametrize(("num_messages", "num_parts"), [(MAX_LEN, None), (MAX_LEN // 2, 2)])
def test_as_many_texts_as_the_context_has_tokens_are_looked_at(
    num_messages: int, num_parts: int | None
) -> None:
    body = {"messages": messages(num_messages, num_parts)}
    wire = parse_generation(ChatCompletionRequest, body, max_model_len=MAX_LEN)
    assert len(wire.messages) == Looked.num_looked == num_messages


def filled(start: bytes, item: bytes, end: bytes, count: int | None = None) -> bytes:
    """A body with `count` items, or as many as the limit of bytes lets through."""
    most = (MAX_BODY_BYTES - len(start) - len(end)) // (len(item) + 1)
    return start + b",".join([item] * (count or most)) + end


NUM_TEXTS = MAX_TEXTS_AND_LISTS


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            filled(b'{"messages":[', b'{"role":"user","content":""}', b"]}"),
            f"the body holds 2314097 strings; at most {NUM_TEXTS} are allowed",
        ),
        (
            filled(b'{"messages":[{"content":[', b'{"type":"text","text":""}', b"]}]}"),
            f"the body holds 2581106 strings; at most {NUM_TEXTS} are allowed",
        ),
        (
            filled(b'{"metadata":{"a":[', b"[]", b"]}}"),
            f"the body holds 5592403 strings, lists and objects; at most {NUM_TEXTS} are allowed",
        ),
        (
            filled(b'{"logit_bias":{', b'"1":1', b"}}"),
            f"the body holds 2796200 strings; at most {NUM_TEXTS} are allowed",
        ),
        (
            filled(b'{"prompt":[', b"1", b"]}"),
            f"the body holds 8388601 values; at most {MAX_VALUES} are allowed",
        ),
        # A name and two lists are beside them.
        (
            filled(b'{"a":["b",', b"{}", b"]}", NUM_TEXTS - 3),
            f"the body holds {NUM_TEXTS + 1} strings, lists and objects; "
            f"at most {NUM_TEXTS} are allowed",
        ),
    ],
)
def test_bodies_of_too_many_values_are_not_decoded(
    body: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(body: bytes) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(msgspec.json, "decode", fail)
    assert len(body) <= MAX_BODY_BYTES
    with pytest.raises(InvalidRequest) as caught:
        decode_json_object(body)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "body",
    [
        filled(b'{"a":["b",', b"{}", b"]}", NUM_TEXTS - 4),
        filled(b'{"a":[', b"1", b"]}", MAX_VALUES),
        # Inside a string nothing counts, whatever backslashes and quotes surround it.
        filled(b'{"a":"', rb"[{ \\", b'"}'),
        filled(b'{"a":"', rb"[{ \" \n \\\" \\\\", b'"}'),
    ],
)
def test_bodies_of_as_many_values_as_allowed_are_decoded(body: bytes) -> None:
    assert decode_json_object(body) == msgspec.json.decode(body)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"logit_bias": {str(i): 1 for i in range(1025)}},
            "logit_bias",
            "logit_bias has 1025 items; at most 1024 are allowed",
        ),
        (
            {"allowed_token_ids": [97] * 260},
            "allowed_token_ids",
            "allowed_token_ids has 260 ids; at most 259 are allowed, the vocabulary's size",
        ),
        (
            {"stop_token_ids": [3] * 100_000},
            "stop_token_ids",
            "stop_token_ids has 100000 items; at most 256 are allowed",
        ),
        ({"stop": ["x"] * 100_000}, "stop", "stop has 100000 items; at most 16 are allowed"),
        (
            {"allowed_token_ids": [97, 98], "stop_token_ids": [98, 97], "min_tokens": 1},
            "min_tokens",
            "min_tokens is 1; only 0 is allowed, as all tokens that may be chosen would end the "
            "text",
        ),
    ],
)
async def test_lists_of_tokens_and_strings_have_an_end(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str, message: str
) -> None:
    answer = await client.post("/v1/completions", json={"prompt": "hi", **fields})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["message"]) == (param, message)
