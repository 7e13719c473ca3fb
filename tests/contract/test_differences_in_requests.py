"""docs/differences-from-vllm.md: its tables of fields are the models', requests bear them out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from refectory_server.api import responses
from refectory_server.api.fields import (
    CHAT_HONOURED,
    CHAT_WITHOUT_EFFECT,
    COMPLETION_HONOURED,
    COMPLETION_WITHOUT_EFFECT,
)
from refectory_server.testing.markdown_table import quoted, table_rows
from refectory_server.testing.simulated_app import simulated_app

pytestmark = pytest.mark.anyio

PAGE = (Path(__file__).parents[2] / "docs" / "differences-from-vllm.md").read_text()

ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    ),
    "completions": ("/v1/completions", {"prompt": "hi", "max_tokens": 2}),
}
HONOURED = {"chat": CHAT_HONOURED, "completions": COMPLETION_HONOURED}
WITHOUT_EFFECT = {"chat": CHAT_WITHOUT_EFFECT, "completions": COMPLETION_WITHOUT_EFFECT}

SAME: dict[str, Any] = {
    "add_generation_prompt": False,
    "allowed_token_ids": [97, 98],
    "bad_words": ["x"],
    "frequency_penalty": -2,
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "min_p": 1,
    "min_tokens": 2,
    "model": "sim",
    "presence_penalty": 2.0,
    "skip_special_tokens": False,
    "stream": True,
    "top_k": -1,
    "top_p": 0.5,
}
"""A value of each field whose meaning is vLLM's."""
WITH_IN_WORDS: dict[str, dict[str, Any]] = {
    "257 ids": {"stop_token_ids": list(range(257))},
    "129 prompts": {"prompt": ["hi"] * 129},
    "129 characters": {"cache_salt": "@" + "x" * 128},
}


def routes(cell: str) -> list[str]:
    return list(ROUTES) if cell == "both" else [cell]


SAME_CASES = [
    (route, field)
    for where, fields in table_rows(PAGE, "Fields with vLLM's meaning")
    for route in routes(where)
    for field in quoted(fields)
]
DIFFERENT_CASES = [
    (route, tuple(quoted(fields)), values, here)
    for fields, where, values, here, _ in table_rows(
        PAGE, "Fields with other limits or another meaning"
    )
    for route in routes(where)
]
NEUTRAL_CASES = [
    (route, field, json.loads(quoted(refused)[0]))
    for fields, where, refused, _ in table_rows(
        PAGE, "Fields taken only with the value that asks for nothing"
    )
    for route in routes(where)
    for field in quoted(fields)
]
OURS_CASES = [
    (route, quoted(field)[0])
    for field, where, _ in table_rows(PAGE, "Fields that vLLM does not have")
    for route in routes(where)
]
ABSENT_CASES = [
    (route, field)
    for fields, where, _ in table_rows(PAGE, "Fields that are absent")
    for route in routes(where)
    for field in quoted(fields)
]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with simulated_app() as simulated:
        yield simulated.client


async def ask(client: httpx.AsyncClient, route: str, fields: dict[str, Any]) -> httpx.Response:
    path, body = ROUTES[route]
    return await client.post(path, json={**body, **fields})


@pytest.mark.parametrize("route", ROUTES)
def test_every_field_of_ours_is_in_one_table(route: str) -> None:
    different = {f for where, fields, _, _ in DIFFERENT_CASES if where == route for f in fields}
    same = [field for where, field in SAME_CASES if where == route]
    ours = [field for where, field in OURS_CASES if where == route]
    assert sorted([*same, *different, *ours]) == sorted(HONOURED[route])
    neutral = [field for where, field, _ in NEUTRAL_CASES if where == route]
    assert sorted(neutral) == sorted(WITHOUT_EFFECT[route])


@pytest.mark.parametrize(("route", "field"), SAME_CASES)
async def test_a_field_with_vllms_meaning_is_taken(
    client: httpx.AsyncClient, route: str, field: str
) -> None:
    answer = await ask(client, route, {field: SAME[field]})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("route", "fields", "values", "here"), DIFFERENT_CASES)
async def test_a_difference_is_as_told(
    client: httpx.AsyncClient, route: str, fields: tuple[str, ...], values: str, here: str
) -> None:
    body = json.loads(quoted(values)[0]) if values.startswith("`") else WITH_IN_WORDS[values]
    assert set(fields) <= body.keys()
    answer = await ask(client, route, body)
    assert str(answer.status_code) == here[:3], answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["param"].partition(".")[0] in fields


@pytest.mark.parametrize(("route", "field", "value"), NEUTRAL_CASES)
async def test_a_value_that_would_have_an_effect_is_refused(
    client: httpx.AsyncClient, route: str, field: str, value: object
) -> None:
    answer = await ask(client, route, {field: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize(("route", "field"), ABSENT_CASES)
async def test_an_absent_field_is_refused_by_name(
    client: httpx.AsyncClient, route: str, field: str
) -> None:
    answer = await ask(client, route, {field: None})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"temprature": 1}, 400), ({"temperature": "1"}, 400), ({"ignore_eos": None}, 200)],
)
async def test_what_holds_for_every_field(
    client: httpx.AsyncClient, fields: dict[str, Any], status: int
) -> None:
    told = [here for _, here, _ in table_rows(PAGE, "Request fields")]
    assert told == ["400 with the nearest one", "400", "absent"]
    for route in ROUTES:
        assert (await ask(client, route, fields)).status_code == status


PARTS: dict[str, type[BaseModel]] = {
    "chat": responses.ChatCompletion,
    "choice of a chat": responses.ChatChoice,
    "message": responses.AssistantMessage,
    "chunk of a chat": responses.ChatCompletionChunk,
    "choice in a chunk": responses.ChatChunkChoice,
    "delta": responses.ChatDelta,
    "completion, and its chunk": responses.Completion,
    "choice of a completion": responses.CompletionChoice,
    "usage": responses.Usage,
    "prompt_tokens_details": responses.PromptTokensDetails,
    "error": responses.ErrorDetail,
}


def test_the_fields_of_answers_are_the_models() -> None:
    told = {
        part: (quoted(both) + quoted(ours), quoted(theirs))
        for part, both, theirs, ours in table_rows(PAGE, "Fields of answers")
    }
    assert told.keys() == PARTS.keys()
    for part, (ours, theirs) in told.items():
        assert sorted(ours) == sorted(PARTS[part].model_fields)
        assert not set(theirs) & set(ours)
