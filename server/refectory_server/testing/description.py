"""`Description`: what `/openapi.json` says, to hold requests and answers to.

Knows no app: it is given the document.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import httpx
import jsonschema_rs


class Description:
    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._components = {"components": _closed(document["components"])}
        self._validator = cache(self._make_validator)

    def check(self, path: str, response: httpx.Response) -> None:
        """Raises `AssertionError` or `jsonschema_rs.ValidationError` for what is not described.

        path: as the description has it. A field that no schema names counts as not described.
        """
        operation = self.document["paths"][path][response.request.method.lower()]
        status = str(response.status_code)
        assert status in operation["responses"], (status, response.text)
        assert "x-request-id" in response.headers
        content = operation["responses"][status].get("content")
        if content is None:
            assert response.content == b""
            return
        media_type = response.headers["content-type"].partition(";")[0]
        if media_type == "text/event-stream":
            self._check_events(content[media_type]["itemSchema"], response.text)
        elif media_type == "application/json":
            self._validate(content[media_type]["schema"], response.json())
        else:
            assert content[media_type]["schema"] == {"type": "string"}

    def check_body(self, path: str, body: object) -> None:
        """Raises `jsonschema_rs.ValidationError` where the description does not allow `body`."""
        request = self.document["paths"][path]["post"]["requestBody"]
        self._validate(request["content"]["application/json"]["schema"], body)

    def _check_events(self, schema: dict[str, Any], text: str) -> None:
        events = [event for event in text.split("\n\n") if not event.startswith(":")]
        assert events.pop() == ""
        data = [event.removeprefix("data: ") for event in events]
        assert all(map(str.startswith, events, ["data: "] * len(events)))
        if data[-1] == "[DONE]":
            data.pop()
        else:
            assert "error" in json.loads(data[-1])
        for one in data:
            self._validate(schema["properties"]["data"]["contentSchema"], json.loads(one))

    def _validate(self, schema: dict[str, Any], value: object) -> None:
        self._validator(json.dumps(schema)).validate(value)

    def _make_validator(self, schema: str) -> jsonschema_rs.Draft202012Validator:
        return jsonschema_rs.Draft202012Validator(json.loads(schema) | self._components)


def _closed(schema: Any) -> Any:
    """The same, with no room for other properties than those that are named."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(item) for name, item in schema.items()}
    if isinstance(closed.get("properties"), dict) and closed.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed
