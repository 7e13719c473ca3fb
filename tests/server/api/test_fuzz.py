"""Whatever a client posts: a documented status, an error object, and never a 500."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refectory_server.api.fields import (
    CHAT_HONOURED,
    CHAT_WITHOUT_EFFECT,
    COMPLETION_HONOURED,
    COMPLETION_WITHOUT_EFFECT,
)
from refectory_server.testing.simulated_app import SimulatedApp, simulated_app

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    COMPLETION: {"prompt": "hi", "max_tokens": 2},
}
NAMES = {
    CHAT: sorted(CHAT_HONOURED | CHAT_WITHOUT_EFFECT.keys()),
    COMPLETION: sorted(COMPLETION_HONOURED | COMPLETION_WITHOUT_EFFECT.keys()),
}

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**70), max_value=2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(
        ["auto", "none", "text", "user", "assistant", "sim", "hi", "", "\0", "a" * 999]
    )
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=6) | st.sampled_from(["role", "type", "text"]), inner)
    ),
    max_leaves=8,
)
parts = st.lists(
    st.fixed_dictionaries({"type": st.just("text") | values, "text": st.text() | values}),
    max_size=2,
)
messages = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
            "content": st.text(max_size=20) | parts | values,
        },
        optional={"name": values, "tool_calls": values, "refusal": values},
    ),
    max_size=3,
)
token_ids = st.lists(st.integers(min_value=-2, max_value=300), max_size=5)
by_name = {
    "messages": messages,
    "prompt": st.text(max_size=30) | token_ids | st.lists(st.text(max_size=5), max_size=2),
    "stop": st.text(max_size=4) | st.lists(st.text(max_size=4), max_size=18),
    "stop_token_ids": token_ids,
    "max_tokens": st.integers(min_value=-1, max_value=600),
    "temperature": st.floats(min_value=-1, max_value=3),
    "top_p": st.floats(min_value=-1, max_value=2),
    "n": st.integers(min_value=-1, max_value=9),
    "best_of": st.integers(min_value=0, max_value=2),
    "min_tokens": st.integers(min_value=-1, max_value=3),
    "presence_penalty": st.floats(min_value=-3, max_value=3),
    "repetition_penalty": st.floats(min_value=-1, max_value=3),
    "logit_bias": st.dictionaries(
        st.sampled_from(["0", "97", "258", "259", "-1", "x", "1e3"]) | st.text(max_size=3),
        st.floats(min_value=-120, max_value=120) | values,
        max_size=3,
    ),
    "allowed_token_ids": token_ids,
    "logprobs": st.booleans() | st.integers(min_value=-1, max_value=22),
    "top_logprobs": st.integers(min_value=-1, max_value=22),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans() | values}),
    "chat_template_kwargs": st.dictionaries(
        st.sampled_from(["tools", "documents", "bos_token", "messages", "x"]), values
    ),
}


def bodies(path: str) -> st.SearchStrategy[dict[str, Any]]:
    named = st.sampled_from(NAMES[path]).flatmap(
        lambda name: st.tuples(st.just(name), by_name.get(name, values) | values)
    )
    unknown = st.tuples(st.text(max_size=8), values)
    fields = st.lists(named, max_size=4) | st.lists(named | unknown, max_size=3)
    return fields.map(lambda pairs: {**BASE[path], **dict(pairs)})


class Fuzzer:
    """One app for all examples, on a loop of its own: hypothesis' tests are not coroutines."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._context = simulated_app()
        self.api: SimulatedApp = self._runner.run(self._context.__aenter__())
        self.statuses: set[int] = set()

    def post(self, path: str, content: bytes) -> httpx.Response:
        answer = self._runner.run(self.api.client.post(path, content=content))
        self.statuses.add(answer.status_code)
        return answer

    def close(self) -> None:
        assert self.api.engine.num_in_flight == self.api.lifecycle.num_in_flight == 0
        self._runner.run(self._context.__aexit__(None, None, None))
        self._runner.close()


@pytest.fixture(scope="module")
def fuzzer() -> Iterator[Fuzzer]:
    fuzzer = Fuzzer()
    yield fuzzer
    fuzzer.close()


def check(fuzzer: Fuzzer, path: str, content: bytes) -> None:
    answer = fuzzer.post(path, content)
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert 0 < len(error["message"]) < 500


bounded = settings(
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@bounded
@given(data=st.data())
def test_any_fields(fuzzer: Fuzzer, path: str, data: st.DataObject) -> None:
    check(fuzzer, path, json.dumps(data.draw(bodies(path))).encode())


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@bounded
@given(content=st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes(fuzzer: Fuzzer, path: str, content: bytes) -> None:
    answer = fuzzer.post(path, content)
    assert answer.status_code == 400, answer.text


@bounded
@given(cut=st.integers(min_value=0, max_value=90), junk=st.binary(max_size=3))
def test_damaged_requests(fuzzer: Fuzzer, cut: int, junk: bytes) -> None:
    whole = json.dumps(BASE[CHAT]).encode()
    check(fuzzer, CHAT, whole[:cut] + junk + whole[cut + len(junk) :])
