"""Requests made from the description, right ones and wrong ones, against what the server says.

schemathesis makes them. Wrong ones must be refused; right ones may be, as a description cannot say
all (ids beyond the vocabulary, two fields that contradict each other).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode, checks
from schemathesis.specs.openapi import checks as openapi

from refectory_server.testing.fuzzer import Fuzzer

NUM_EXAMPLES = 60
ROUTES_WITH_BODY = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
HELD = [
    checks.not_a_server_error,
    openapi.status_code_conformance,
    openapi.content_type_conformance,
    openapi.response_headers_conformance,
    openapi.response_schema_conformance,
    openapi.negative_data_rejection,
]


@pytest.fixture(scope="module")
def fuzzer() -> Iterator[Fuzzer]:
    fuzzer = Fuzzer()
    yield fuzzer
    fuzzer.close()


OPERATIONS = [
    *(("POST", path, mode) for path in ROUTES_WITH_BODY for mode in GenerationMode),
    # No text is a wrong name in a path.
    ("GET", "/v1/models/{name}", GenerationMode.POSITIVE),
]


@pytest.mark.parametrize(("method", "path", "mode"), OPERATIONS)
def test_requests_from_the_description(
    fuzzer: Fuzzer, method: str, path: str, mode: GenerationMode
) -> None:
    operation = schemathesis.openapi.from_dict(fuzzer.description.document)[path][method]

    @settings(
        max_examples=NUM_EXAMPLES,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def holds(case: schemathesis.Case[Any]) -> None:
        sent: dict[str, Any] = case.as_transport_kwargs(base_url="http://app")
        sent.pop("cookies", None)
        if "data" in sent:
            sent["content"] = sent.pop("data")
        response = fuzzer.request(sent.pop("method"), path, **sent)
        case.validate_response(response, checks=HELD)

    holds()
    fuzzer.check_idle()


@pytest.mark.parametrize(
    "path", ["/v1/models", "/health", "/ready", "/metrics", "/load", "/version"]
)
def test_what_is_only_read(fuzzer: Fuzzer, path: str) -> None:
    assert fuzzer.request("GET", path).status_code == 200
