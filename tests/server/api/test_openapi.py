"""`/openapi.json`: all routes and no others, whole and sound, with the keys that are asked for.

Whether answers are as it says is for test_fuzz and test_described_requests.
"""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.openapi.models import OpenAPI
from fastapi.routing import iter_route_contexts

from refectory_server.api.app import create_metrics_app
from refectory_server.api.body import MAX_BODY_BYTES
from refectory_server.api.fields import (
    CHAT_HONOURED,
    CHAT_WITHOUT_EFFECT,
    COMPLETION_HONOURED,
    COMPLETION_WITHOUT_EFFECT,
)
from refectory_server.config import ApiConfig
from refectory_server.testing.description import Description
from refectory_server.testing.simulated_app import SimulatedApp, client_of, simulated_app

pytestmark = pytest.mark.anyio

OPEN = {"/health", "/ready", "/metrics"}
KEY = {"Authorization": "Bearer key-a"}


async def document_of(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    document: dict[str, Any] = answer.json()
    return document


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def served(app: FastAPI) -> set[tuple[str, str]]:
    """Method and path of everything that the app answers; HEAD is what is said of GET."""
    return {
        (method, str(context.path_format))
        for context in iter_route_contexts(app.routes)
        for method in context.methods or ()
        if method != "HEAD"
    }


async def test_every_route_is_described_and_nothing_else(api: SimulatedApp) -> None:
    described = operations(await document_of(api.client))
    assert described.keys() | {("GET", "/openapi.json")} == served(api.app)
    names = [operation["operationId"] for operation in described.values()]
    assert sorted(names) == sorted(set(names))


async def test_the_description_is_sound(client: httpx.AsyncClient) -> None:
    document = await document_of(client)
    OpenAPI(**document)
    schemas = document["components"]["schemas"]
    text = repr(document)
    referred = set(re.findall(r"#/components/schemas/(\w+)", text))
    assert referred == schemas.keys()
    assert "http" not in text.replace("'type': 'http'", "")  # nothing to load from elsewhere


async def test_a_request_has_the_fields_that_are_taken_and_no_others(
    client: httpx.AsyncClient,
) -> None:
    schemas = (await document_of(client))["components"]["schemas"]
    chat, completion = schemas["ChatCompletionRequest"], schemas["CompletionRequest"]
    assert chat["properties"].keys() == CHAT_HONOURED | CHAT_WITHOUT_EFFECT.keys()
    assert completion["properties"].keys() == COMPLETION_HONOURED | COMPLETION_WITHOUT_EFFECT.keys()
    for schema in (chat, completion, schemas["ChatMessage"], schemas["TextPart"]):
        assert schema["additionalProperties"] is False
    assert chat["required"] == ["messages"]
    assert completion["properties"]["stop"]["anyOf"] == [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "maxItems": 16},
        {"type": "null"},
    ]
    assert completion["properties"]["use_beam_search"] == {"enum": [False, None]}
    assert schemas["ChatMessage"]["properties"]["tool_calls"] == {"enum": [None, []]}


async def test_a_server_without_keys_asks_for_none(client: httpx.AsyncClient) -> None:
    document = await document_of(client)
    assert "security" not in document
    for operation in operations(document).values():
        assert "security" not in operation
        assert "401" not in operation["responses"]


async def test_a_server_with_keys_says_where_it_asks_for_one() -> None:
    async with simulated_app(api=ApiConfig(api_key=("key-a",))) as api:
        document = await document_of(api.client)
        description = Description(document)
        assert document["security"] == [{"key": []}]
        assert document["components"]["securitySchemes"]["key"] == {
            "type": "http",
            "scheme": "bearer",
        }
        for (method, path), operation in operations(document).items():
            answer = await api.client.request(method, path.format(name="sim"))
            description.check(path, answer)
            assert (answer.status_code == 401) is (path not in OPEN)
            assert operation.get("security") == ([] if path in OPEN else None)
            answer = await api.client.request(method, path.format(name="sim"), headers=KEY)
            description.check(path, answer)
            assert answer.status_code == (400 if method == "POST" else 200)


async def test_statuses_of_a_server_that_stops_and_of_large_bodies(api: SimulatedApp) -> None:
    description = Description(await document_of(api.client))
    described = operations(description.document)
    for (method, path), operation in described.items():
        if method == "POST":
            answer = await api.client.post(path, content=b" " * (MAX_BODY_BYTES + 1))
            description.check(path, answer)
            assert answer.status_code == 413
        else:
            assert "413" not in operation["responses"]
    api.lifecycle.stop()
    for (method, path), operation in described.items():
        answer = await api.client.request(method, path.format(name="sim"))
        description.check(path, answer)
        is_unavailable = "503" in operation["responses"] and path != "/health"
        assert (answer.status_code == 503) is is_unavailable


async def test_the_port_for_metrics_describes_nothing(api: SimulatedApp) -> None:
    app: FastAPI = create_metrics_app(api.engine, api.config, api.metrics, api.lifecycle)
    async with client_of(app) as client:
        for path in ("/openapi.json", "/docs"):
            assert (await client.get(path)).status_code == 404
