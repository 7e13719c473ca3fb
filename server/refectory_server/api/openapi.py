"""`/openapi.json`: the routes, their bodies and answers as an OpenAPI 3.1 description.

Owns what a description says beyond the models: which route gives which status, streams, keys.
FastAPI writes the operations and pydantic the schemas. Knows no requests at run time.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import JSONResponse, PlainTextResponse, Response

from refectory_server.api.auth import OPEN_PATHS
from refectory_server.api.fields import CHAT_WITHOUT_EFFECT, COMPLETION_WITHOUT_EFFECT
from refectory_server.api.in_flight import UNCOUNTED_PATHS
from refectory_server.api.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from refectory_server.api.responses import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    DetokenizeResponse,
    ErrorBody,
    LoadResponse,
    ModelCard,
    ModelList,
    ReadyResponse,
    TokenizeResponse,
    VersionResponse,
    json_response,
)

REQUESTS = (ChatCompletionRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
ANSWERS = (
    *(ChatCompletion, ChatCompletionChunk, Completion, ModelCard, ModelList),
    *(TokenizeResponse, DetokenizeResponse),
    *(LoadResponse, ReadyResponse, VersionResponse, ErrorBody),
)
BODY_ERRORS = (400, 404, 408, 413)
"""Of a route that takes a body with a model in it."""
GENERATION_ERRORS = (*BODY_ERRORS, 429)
DESCRIPTION = (
    "OpenAI's chat and completions, and what probes, routers and Prometheus read. A path that is "
    "no route is answered with 404 and a wrong method with 405, both with the error object."
)
_SCHEMA_REF = "#/components/schemas/{model}"
_REQUEST_ID = {"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}}


def operation(
    answer: type[BaseModel] | None = None,
    *,
    is_text: bool = False,
    body: type[BaseModel] | None = None,
    chunk: type[BaseModel] | None = None,
    errors: Iterable[int] = (),
) -> dict[str, Any]:
    """A route's description, as keywords for `add_api_route`.

    answer: of status 200; None: no content, or plain text
    chunk: what `stream: true` sends in place of `answer`
    errors: statuses with the error object, beyond those that every route has
    """
    responses = {200: _response(200, answer)}
    if chunk is not None:
        responses[200]["content"]["text/event-stream"] = {"itemSchema": _event_schema(chunk)}
    # FastAPI takes the media type from the class; the routes make their own responses.
    without_model = PlainTextResponse if is_text else Response
    keywords: dict[str, Any] = {
        "responses": responses | {status: _response(status, ErrorBody) for status in errors},
        "response_class": JSONResponse if answer else without_model,
    }
    if body is not None:
        content = {"application/json": {"schema": _ref(body)}}
        keywords["openapi_extra"] = {"requestBody": {"required": True, "content": content}}
    return keywords


def probe(answer: type[BaseModel] | None = None) -> dict[str, Any]:
    """`operation` of a route that answers 200 or 503, alike."""
    keywords = operation(answer)
    keywords["responses"][503] = _response(503, answer)
    return keywords


def add_openapi_route(app: FastAPI, *, needs_key: bool) -> None:
    """`needs_key`: whether the guarded routes ask for one."""

    @functools.cache
    def document() -> str:
        return json.dumps(describe(app, needs_key=needs_key))

    async def openapi() -> Response:
        return json_response(document())

    app.add_api_route("/openapi.json", openapi, include_in_schema=False)


def describe(app: FastAPI, *, needs_key: bool) -> dict[str, Any]:
    """The whole description, in about 20 ms."""
    with warnings.catch_warnings():
        # A route of GET and HEAD has one operation id for both.
        warnings.simplefilter("ignore", UserWarning)
        document = get_openapi(
            title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes
        )
    document["components"] = {
        "schemas": _schemas(),
        "headers": {
            "X-Request-Id": {
                "description": "The request's own, or one made here.",
                "schema": {"type": "string"},
            }
        },
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
    }
    if needs_key:
        document["security"] = [{"key": []}]
    for path, operations in document["paths"].items():
        operations.pop("head", None)  # what is said of GET
        for described in operations.values():
            _add_common(described, path, needs_key=needs_key)
    return document


def _add_common(described: dict[str, Any], path: str, *, needs_key: bool) -> None:
    """What follows from the path alone."""
    responses = described["responses"]
    responses.pop("422", None)  # FastAPI's, for parameters of its own parsing
    responses["431"] = {"description": HTTPStatus(431).phrase}
    responses["500"] = _response(500, ErrorBody)
    if path not in UNCOUNTED_PATHS:
        responses.setdefault("503", _response(503, ErrorBody))
    if needs_key:
        if path in OPEN_PATHS:
            described["security"] = []
        else:
            responses["401"] = _response(401, ErrorBody)
    described["responses"] = dict(sorted(responses.items()))


def _response(status: int, model: type[BaseModel] | None) -> dict[str, Any]:
    described: dict[str, Any] = {
        "description": HTTPStatus(status).phrase,
        "headers": dict(_REQUEST_ID),
    }
    if status in (429, 503):
        described["headers"]["Retry-After"] = {"schema": {"type": "integer"}}
    if model is not None:
        described["content"] = {"application/json": {"schema": _ref(model)}}
    return described


def _event_schema(chunk: type[BaseModel]) -> dict[str, Any]:
    """An event of a stream, in the manner of FastAPI (OpenAPI 3.2, "Sequential Media Types")."""
    return {
        "type": "object",
        "description": "The last event's data is [DONE], or an error object in place of it.",
        "properties": {
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": {"anyOf": [_ref(chunk), _ref(ErrorBody)]},
            }
        },
        "required": ["data"],
    }


def _schemas() -> dict[str, Any]:
    _, definitions = models_json_schema(
        [(model, "validation") for model in REQUESTS]
        + [(model, "serialization") for model in ANSWERS],
        ref_template=_SCHEMA_REF,
    )
    schemas: dict[str, Any] = definitions["$defs"]
    for model, fields in (
        (ChatCompletionRequest, CHAT_WITHOUT_EFFECT),
        (CompletionRequest, COMPLETION_WITHOUT_EFFECT),
    ):
        schemas[model.__name__]["properties"] |= {
            name: field.json_schema for name, field in fields.items()
        }
    return schemas


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _SCHEMA_REF.format(model=model.__name__)}
