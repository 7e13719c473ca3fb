"""The three lists, field by field: honoured, without effect, refused."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from refectory_server.api.fields import (
    CHAT_HONOURED,
    CHAT_WITHOUT_EFFECT,
    COMPLETION_HONOURED,
    COMPLETION_WITHOUT_EFFECT,
)

pytestmark = pytest.mark.anyio

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"prompt": "hi"}
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "completion": ("/v1/completions", COMPLETION),
}

SHARED_HONOURED: dict[str, Any] = {
    "model": "sim",
    "n": 2,
    "best_of": 1,
    "max_tokens": 2,
    "min_tokens": 1,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 4,
    "min_p": 0.1,
    "presence_penalty": -1.5,
    "frequency_penalty": 2,
    "repetition_penalty": 1.2,
    "logit_bias": {"104": 5, "0": -100.0},
    "allowed_token_ids": [97, 98],
    "bad_words": ["zz", " yy"],
    "seed": -3,
    "stop": ["zz", "yy"],
    "stop_token_ids": [3, 4],
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "skip_special_tokens": False,
    "stream": False,
    "stream_options": None,
    "priority": 0,
    "cache_salt": "tenant",
}
CHAT_VALUES = SHARED_HONOURED | {
    "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
    "max_completion_tokens": 2,
    "add_generation_prompt": False,
    "continue_final_message": False,
    "chat_template_kwargs": {"thinking": True},
    "logprobs": True,
    "top_logprobs": 0,
}
COMPLETION_VALUES = SHARED_HONOURED | {"prompt": [104, 105], "logprobs": 3, "echo": True}

WITHOUT_EFFECT: dict[str, list[Any]] = {
    "metadata": [{}, {"a": "b"}],
    "prompt_cache_key": ["k"],
    "safety_identifier": ["k"],
    "service_tier": ["auto", "flex"],
    "store": [False],
    "user": ["me"],
    "length_penalty": [1],
    "prompt_logprobs": [],
    "truncate_prompt_tokens": [],
    "typical_p": [1.0],
    "use_beam_search": [False],
    "guided_choice": [],
    "guided_grammar": [],
    "guided_json": [],
    "guided_regex": [],
    "response_format": [{"type": "text"}],
    "return_token_ids": [False],
    "spaces_between_special_tokens": [True],
    "structured_outputs": [],
}
CHAT_NEUTRAL = WITHOUT_EFFECT | {
    "add_special_tokens": [False],
    "audio": [],
    "chat_template": [],
    "documents": [[]],
    "echo": [False],
    "function_call": ["none", "auto"],
    "functions": [[]],
    "include_reasoning": [True, False],
    "modalities": [["text"]],
    "parallel_tool_calls": [True, False],
    "prediction": [],
    "reasoning_effort": ["none"],
    "tool_choice": ["none", "auto"],
    "tools": [[]],
    "verbosity": ["medium"],
    "web_search_options": [],
}
COMPLETION_NEUTRAL = WITHOUT_EFFECT | {
    "add_special_tokens": [True],
    "suffix": [""],
}
WITH_EFFECT: dict[str, list[Any]] = {
    "metadata": [1, "text"],
    "prompt_cache_key": [1],
    "safety_identifier": [1],
    "service_tier": [True],
    "store": [True, 0],
    "user": [7],
    "length_penalty": [0.5],
    "prompt_logprobs": [0, 1],
    "truncate_prompt_tokens": [4],
    "typical_p": [0.9],
    "use_beam_search": [True],
    "guided_choice": [["a"]],
    "guided_grammar": ["g"],
    "guided_json": [{}],
    "guided_regex": ["a+"],
    "response_format": [{"type": "json_object"}, {"type": "text", "x": 1}, "text"],
    "return_token_ids": [True],
    "spaces_between_special_tokens": [False],
    "structured_outputs": [{"json": {}}],
}
CHAT_WITH_EFFECT = WITH_EFFECT | {
    "add_special_tokens": [True],
    "audio": [{"voice": "x"}],
    "chat_template": ["{{ 1 }}"],
    "documents": [[{"text": "t"}]],
    "echo": [True],
    "function_call": [{"name": "f"}],
    "functions": [[{"name": "f"}]],
    "include_reasoning": [1],
    "modalities": [["audio"], ["text", "audio"]],
    "parallel_tool_calls": ["yes"],
    "prediction": [{"type": "content"}],
    "reasoning_effort": ["high"],
    "tool_choice": ["required", {"type": "function"}],
    "tools": [[{"type": "function"}]],
    "verbosity": ["low"],
    "web_search_options": [{}],
}
COMPLETION_WITH_EFFECT = WITH_EFFECT | {
    "add_special_tokens": [False],
    "suffix": ["x"],
}


def cases(table: dict[str, dict[str, list[Any]]]) -> list[tuple[str, str, Any]]:
    return [
        (route, name, value)
        for route, fields in table.items()
        for name, values in fields.items()
        for value in values
    ]


async def test_the_lists_hold_exactly_the_fields_tested_here() -> None:
    assert CHAT_VALUES.keys() == CHAT_HONOURED
    assert COMPLETION_VALUES.keys() == COMPLETION_HONOURED
    assert CHAT_NEUTRAL.keys() == CHAT_WITHOUT_EFFECT.keys() == CHAT_WITH_EFFECT.keys()
    assert COMPLETION_NEUTRAL.keys() == COMPLETION_WITHOUT_EFFECT.keys()
    assert COMPLETION_NEUTRAL.keys() == COMPLETION_WITH_EFFECT.keys()
    assert not CHAT_HONOURED & CHAT_WITHOUT_EFFECT.keys()
    assert not COMPLETION_HONOURED & COMPLETION_WITHOUT_EFFECT.keys()


@pytest.mark.parametrize(
    ("route", "name", "value"),
    [("chat", *item) for item in CHAT_VALUES.items()]
    + [("completion", *item) for item in COMPLETION_VALUES.items()],
)
async def test_honoured_fields_are_taken(
    client: httpx.AsyncClient, route: str, name: str, value: Any
) -> None:
    path, body = ROUTES[route]
    answer = await client.post(path, json={"max_tokens": 2, **body, name: value})
    assert answer.status_code == 200, answer.text


async def test_fields_without_effect_change_nothing(client: httpx.AsyncClient) -> None:
    for route, neutral in (("chat", CHAT_NEUTRAL), ("completion", COMPLETION_NEUTRAL)):
        path, body = ROUTES[route]
        body = {**body, "max_tokens": 4, "seed": 1}
        plain = (await client.post(path, json=body)).json()["choices"]
        for name, values in neutral.items():
            for value in [None, *values]:
                answer = await client.post(path, json={**body, name: value})
                assert answer.status_code == 200, answer.text
                assert answer.json()["choices"] == plain


@pytest.mark.parametrize(
    ("route", "name", "value"),
    cases({"chat": CHAT_WITH_EFFECT, "completion": COMPLETION_WITH_EFFECT}),
)
async def test_values_with_an_effect_are_refused_by_name(
    client: httpx.AsyncClient, route: str, name: str, value: Any
) -> None:
    path, body = ROUTES[route]
    answer = await client.post(path, json={**body, name: value})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == name
    assert error["message"].startswith(f"{name} is ")
    assert re.search(
        r"; this server (does not serve .+ and accepts only|accepts only any) .+$", error["message"]
    )


@pytest.mark.parametrize(
    ("route", "name", "message"),
    [
        (
            "chat",
            "tempurature",
            "'tempurature' is not a field of this request; did you mean temperature?",
        ),
        ("chat", "prompt", "'prompt' is not a field of this request"),
        ("chat", "qqq", "'qqq' is not a field of this request"),
        (
            "completion",
            "max_completion_tokens",
            "'max_completion_tokens' is not a field of this request; did you mean min_tokens?",
        ),
        ("completion", "x" * 100, f"'{'x' * 59}... is not a field of this request"),
    ],
)
async def test_unknown_fields_are_refused_with_the_nearest_name(
    client: httpx.AsyncClient, route: str, name: str, message: str
) -> None:
    path, body = ROUTES[route]
    for value in (1, None):
        answer = await client.post(path, json={**body, name: value})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("user", 7, "user is 7; this server accepts only any string or null"),
        (
            "store",
            True,
            "store is true; this server does not serve stored completions and accepts only false "
            "or null",
        ),
        (
            "tools",
            [{"type": "function"}],
            "tools is a list of 1; this server does not serve tool calls and accepts only [] or "
            "null",
        ),
        (
            "tool_choice",
            "required",
            "tool_choice is 'required'; this server does not serve tool calls and accepts only "
            '"none" or "auto" or null',
        ),
        (
            "response_format",
            {"type": "json_object"},
            "response_format is an object of 1; this server does not serve structured output and "
            'accepts only {"type": "text"} or null',
        ),
        (
            "guided_regex",
            "a+",
            "guided_regex is 'a+'; this server does not serve structured output and accepts only "
            "null",
        ),
    ],
)
async def test_a_refusal_says_what_is_not_served(
    client: httpx.AsyncClient, name: str, value: Any, message: str
) -> None:
    answer = await client.post("/v1/chat/completions", json={**CHAT, name: value})
    assert answer.json() == {
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "param": name,
            "code": None,
        }
    }
