"""docs/api.md names every field and every error code that the API knows, in its list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from refectory_server.api import error_handlers
from refectory_server.api.fields import (
    CHAT_HONOURED,
    CHAT_WITHOUT_EFFECT,
    COMPLETION_HONOURED,
    COMPLETION_WITHOUT_EFFECT,
)
from refectory_server.config import ApiConfig
from refectory_server.testing.simulated_app import simulated_app

pytestmark = pytest.mark.anyio

TEXT = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def names_between(start: str, end: str) -> set[str]:
    section = TEXT.partition(start)[2].partition(end)[0]
    return set(re.findall(r"`([a-z_]+)`", section))


def test_honoured_fields() -> None:
    documented = names_between("### Honoured", "### Accepted without effect")
    assert documented - {"include_usage"} == CHAT_HONOURED | COMPLETION_HONOURED


def test_fields_without_effect() -> None:
    documented = names_between("### Accepted without effect", "### Refused")
    documented -= {"field", "values", "route"}
    assert documented == CHAT_WITHOUT_EFFECT.keys() | COMPLETION_WITHOUT_EFFECT.keys()


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        ("chat", CHAT_WITHOUT_EFFECT.keys() - COMPLETION_WITHOUT_EFFECT.keys()),
        ("completions", COMPLETION_WITHOUT_EFFECT.keys() - CHAT_WITHOUT_EFFECT.keys()),
    ],
)
def test_fields_of_one_route_only(route: str, fields: set[str]) -> None:
    rows = [line for line in TEXT.splitlines() if line.endswith(f"| {route} |")]
    assert set(re.findall(r"`([a-z_]+)`", "\n".join(rows))) == fields


async def test_routes_and_statuses_are_those_of_the_description() -> None:
    async with simulated_app(api=ApiConfig(api_key=("key",))) as api:
        described = (await api.client.get("/openapi.json")).json()["paths"]
    routes = {
        (method.upper(), path) for path, operations in described.items() for method in operations
    }
    documented = re.findall(r"`(GET|POST) (/[^`]*)`", TEXT.partition("## Fields")[0])
    assert set(documented) == routes | {("GET", "/openapi.json")}
    statuses = {
        int(status)
        for operations in described.values()
        for operation in operations.values()
        for status in operation["responses"]
    }
    errors = TEXT.partition("## Errors")[2].partition("## Shutdown")[0]
    rows = re.findall(r"^\| (\d{3}(?:, \d{3})*) \|", errors, re.MULTILINE)
    # Another method is no operation, so the description has no place for its 405.
    assert {int(status) for row in rows for status in row.split(", ")} == statuses - {200} | {405}


def test_error_codes() -> None:
    source = Path(error_handlers.__file__).read_text(encoding="utf-8")
    codes = set(re.findall(r'(?:INVALID|SERVER|"rate_limit_error"), "([a-z_]+)"', source))
    assert len(codes) > 8
    documented = names_between("## Errors", "## Shutdown")
    assert codes | {"loading", "shutting_down"} <= documented
