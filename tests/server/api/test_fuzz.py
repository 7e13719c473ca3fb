"""Whatever a client posts: a described status and body, never a 500, and nothing left behind.

With test_described_requests, where the requests come from the description, over 2,000 examples.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refectory_server.api.fields import (
    CHAT_HONOURED,
    CHAT_WITHOUT_EFFECT,
    COMPLETION_HONOURED,
    COMPLETION_WITHOUT_EFFECT,
)
from refectory_server.api.protocol import DetokenizeRequest, TokenizeRequest
from refectory_server.testing.fuzzer import Fuzzer

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    COMPLETION: {"prompt": "hi", "max_tokens": 2},
    TOKENIZE: {"prompt": "hi"},
    DETOKENIZE: {"tokens": [104, 105]},
}
NAMES = {
    CHAT: sorted(CHAT_HONOURED | CHAT_WITHOUT_EFFECT.keys()),
    COMPLETION: sorted(COMPLETION_HONOURED | COMPLETION_WITHOUT_EFFECT.keys()),
    TOKENIZE: sorted(TokenizeRequest.model_fields),
    DETOKENIZE: sorted(DetokenizeRequest.model_fields),
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
    "n": st.sampled_from([-1, 0, 1, 2, 3, 9, 128, 129, 2**31]),
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


def one_in(
    count: int, rare: st.SearchStrategy[Any], usual: st.SearchStrategy[Any]
) -> st.SearchStrategy[Any]:
    """Mostly `usual`: what is wrong in every other field says little of the rest."""
    return st.integers(min_value=1, max_value=count).flatmap(lambda i: rare if i == 1 else usual)


def fields(path: str) -> st.SearchStrategy[tuple[str, Any]]:
    named = st.sampled_from(NAMES[path]).flatmap(
        lambda name: st.tuples(st.just(name), one_in(5, values, by_name.get(name, st.none())))
    )
    return one_in(12, st.tuples(st.text(max_size=8), values), named)


def bodies(path: str) -> st.SearchStrategy[dict[str, Any]]:
    pairs = st.lists(fields(path), max_size=4)
    return pairs.map(lambda pairs: {**BASE[path], **dict(pairs)})


# JSON as text: what no encoder writes can be said in it, and names twice.
extreme_texts = st.sampled_from(
    [
        *("1e308", "-1e308", "1e-400", "-0", "-0.0", "0.1", "1.0", "1E2", "1" * 400 + ".5"),
        *("9" * 19, "9" * 20, "-" + "9" * 40, "9" * 400, "9" * 4000),
        *('"\\ud83d\\ude00"', '"\\u0000"', '"\\uffff"', json.dumps("a" * 3000)),
        *(json.dumps(text, ensure_ascii=False) for text in ("\U0001f600" * 99, "\u202e\u0301")),
        *("[" * depth + "]" * depth for depth in (1, 2, 17, 200)),
        *('{"a":' * depth + "1" + "}" * depth for depth in (1, 17, 200)),
        *("{}", "[null]", '{"":[]}', "[" + "0," * 999 + "0]", '{"a":1,"a":[]}'),
        *('{"97":1e308}', '{"97":-100,"97":100}', '{"9999999999":1}', '{"-0":1}'),
        *('{"\\u0661":1}', json.dumps({str(i): 1 for i in range(1025)})),
    ]
)
broken_texts = st.sampled_from(
    [
        *("NaN", "Infinity", "-Infinity", "nul", "01", "+1", ".5", "0x1", "'a'", "", "\\"),
        *("1e309", "9" * 5000, "[" * 5000 + "]" * 5000, '{"a":' * 5000 + "1" + "}" * 5000),
        *('"\\ud800"', '"\\udc00\\ud800"', '"\n"', '"\\x"', '{"\\ud800":1}', '{"97":NaN}'),
    ]
)


def body_texts(path: str) -> st.SearchStrategy[str]:
    """Objects with the usual fields before or after the hostile ones: the last of a name counts."""
    base = [(json.dumps(name), json.dumps(value)) for name, value in BASE[path].items()]
    usual = fields(path).map(lambda pair: (json.dumps(pair[0]), json.dumps(pair[1])))
    names = st.sampled_from(NAMES[path]).map(json.dumps)
    hostile = st.tuples(names, one_in(8, broken_texts, extreme_texts))
    pairs = st.lists(one_in(3, hostile, usual), min_size=1, max_size=4)
    orders = st.tuples(pairs, st.booleans()).map(
        lambda drawn: base + drawn[0] if drawn[1] else drawn[0] + base
    )
    return orders.map(lambda pairs: "{" + ",".join(f"{name}:{text}" for name, text in pairs) + "}")


@pytest.fixture(scope="module")
def fuzzer() -> Iterator[Fuzzer]:
    fuzzer = Fuzzer()
    yield fuzzer
    fuzzer.close()


def check(fuzzer: Fuzzer, path: str, content: bytes) -> None:
    response = fuzzer.post(path, content)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert 0 < len(error["message"]) <= 1003


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@pytest.mark.parametrize(
    ("path", "count"), [(CHAT, 300), (COMPLETION, 300), (TOKENIZE, 100), (DETOKENIZE, 60)]
)
def test_any_fields(fuzzer: Fuzzer, path: str, count: int) -> None:
    @examples(count)
    @given(body=bodies(path))
    def holds(body: dict[str, Any]) -> None:
        check(fuzzer, path, json.dumps(body).encode())

    holds()
    fuzzer.check_idle()


@pytest.mark.parametrize(
    ("path", "count"), [(CHAT, 300), (COMPLETION, 300), (TOKENIZE, 100), (DETOKENIZE, 60)]
)
def test_any_text_of_fields(fuzzer: Fuzzer, path: str, count: int) -> None:
    @examples(count)
    @given(text=body_texts(path))
    def holds(text: str) -> None:
        check(fuzzer, path, text.encode())

    holds()
    fuzzer.check_idle()


@pytest.mark.parametrize("path", [CHAT, COMPLETION, TOKENIZE, DETOKENIZE])
@examples(60)
@given(content=st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes(fuzzer: Fuzzer, path: str, content: bytes) -> None:
    response = fuzzer.post(path, content)
    assert response.status_code == 400, response.text


@examples(100)
@given(cut=st.integers(min_value=0, max_value=90), junk=st.binary(max_size=3))
def test_damaged_requests(fuzzer: Fuzzer, cut: int, junk: bytes) -> None:
    whole = json.dumps(BASE[CHAT]).encode()
    check(fuzzer, CHAT, whole[:cut] + junk + whole[cut + len(junk) :])
