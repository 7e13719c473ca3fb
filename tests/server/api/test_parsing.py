"""Wrong types, ranges and shapes: a 400 with the dotted path, the value, and what is allowed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"max_tokens": "1"}, "max_tokens", "max_tokens is '1'; it must be an integer"),
        ({"max_tokens": True}, "max_tokens", "max_tokens is true; it must be an integer"),
        ({"max_tokens": 1.5}, "max_tokens", "max_tokens is 1.5; it must be an integer"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0; allowed is [1, 2147483647]"),
        (
            {"max_completion_tokens": -1},
            "max_completion_tokens",
            "max_completion_tokens is -1; allowed is [1, 2147483647]",
        ),
        (
            {"max_completion_tokens": 1000},
            "max_completion_tokens",
            "max_completion_tokens is 1000; allowed is [1, 493]: the context is 512 tokens and "
            "messages has 19",
        ),
        (
            {"max_tokens": 1, "max_completion_tokens": 2},
            "max_tokens",
            "max_tokens is 1 and max_completion_tokens is 2; give one of them, or the same value",
        ),
        ({"temperature": "hot"}, "temperature", "temperature is 'hot'; it must be a number"),
        ({"temperature": True}, "temperature", "temperature is true; it must be a number"),
        ({"temperature": 2.5}, "temperature", "temperature is 2.5; allowed is [0, 2]"),
        ({"temperature": -0.1}, "temperature", "temperature is -0.1; allowed is [0, 2]"),
        ({"top_p": 0}, "top_p", "top_p is 0.0; allowed is (0, 1]"),
        ({"top_k": -2}, "top_k", "top_k is -2; allowed is [-1, 2147483647]"),
        ({"min_p": 1.1}, "min_p", "min_p is 1.1; allowed is [0, 1]"),
        ({"seed": 2**63}, "seed", f"seed is {2**63}; allowed is [{-(2**63)}, {2**63 - 1}]"),
        ({"seed": 10**100}, "seed", None),
        (
            {"temperature": 10**400},
            "temperature",
            "temperature is an integer of 1329 bits; it must be a number of at most 1.8e308",
        ),
        ({"n": 0}, "n", "n is 0; allowed is [1, 128]"),
        ({"n": 129}, "n", "n is 129; allowed is [1, 128]"),
        ({"n": True}, "n", "n is true; it must be an integer"),
        ({"n": 2, "best_of": 3}, "best_of", "best_of is 3; this server accepts only n, 2"),
        ({"best_of": 2}, "best_of", "best_of is 2; this server accepts only n, 1"),
        (
            {"max_tokens": 3, "min_tokens": 4},
            "min_tokens",
            "min_tokens is 4; allowed is [0, 3]: max_tokens is 3",
        ),
        (
            {"min_tokens": 494},
            "min_tokens",
            "min_tokens is 494; allowed is [0, 493]: the context is 512 tokens and messages has 19",
        ),
        (
            {"presence_penalty": -2.5},
            "presence_penalty",
            "presence_penalty is -2.5; allowed is [-2, 2]",
        ),
        (
            {"frequency_penalty": 3},
            "frequency_penalty",
            "frequency_penalty is 3.0; allowed is [-2, 2]",
        ),
        (
            {"repetition_penalty": 0},
            "repetition_penalty",
            "repetition_penalty is 0.0; allowed is [0.01, 100]",
        ),
        ({"logit_bias": []}, "logit_bias", "logit_bias is []; it must be an object"),
        (
            {"logit_bias": {"a": 1}},
            "logit_bias",
            "logit_bias has the key 'a'; each must be a token id",
        ),
        (
            {"logit_bias": {"-1": 1}},
            "logit_bias",
            "logit_bias has the key '-1'; each must be a token id",
        ),
        (
            {"logit_bias": {"05": 1}},
            "logit_bias",
            "logit_bias has the key '05'; each must be a token id",
        ),
        (
            {"logit_bias": {"5": "1"}},
            "logit_bias",
            "logit_bias of token 5 is '1'; it must be a number",
        ),
        (
            {"logit_bias": {"5": True}},
            "logit_bias",
            "logit_bias of token 5 is true; it must be a number",
        ),
        (
            {"logit_bias": {"5": 100.5}},
            "logit_bias",
            "logit_bias of token 5 is 100.5; allowed is [-100, 100]",
        ),
        (
            {"logit_bias": {"259": 1}},
            "logit_bias",
            "logit_bias holds the token id 259; allowed is [0, 258]",
        ),
        ({"logit_bias": {"9" * 400: 1}}, "logit_bias", None),
        (
            {"allowed_token_ids": []},
            "allowed_token_ids",
            "allowed_token_ids is []; it must not be empty",
        ),
        (
            {"allowed_token_ids": [1, 999]},
            "allowed_token_ids",
            "allowed_token_ids holds the token id 999; allowed is [0, 258]",
        ),
        ({"logprobs": 1}, "logprobs", "logprobs is 1; it must be true or false"),
        (
            {"top_logprobs": 2},
            "top_logprobs",
            "top_logprobs is 2; without logprobs: true only 0 is allowed",
        ),
        (
            {"logprobs": True, "top_logprobs": 21},
            "top_logprobs",
            "top_logprobs is 21; allowed is [0, 20], the server's --max-logprobs",
        ),
        (
            {"logprobs": True, "top_logprobs": -1},
            "top_logprobs",
            "top_logprobs is -1; allowed is [0, 2147483647]",
        ),
        (
            {"priority": 3},
            "priority",
            "priority is 3; only 0 is allowed, as this server's --scheduling-policy is fcfs",
        ),
        ({"stop": [""]}, "stop", "stop holds an empty string; each needs a character"),
        (
            {"stop": list("abcdefghijklmnopq")},
            "stop",
            "stop has 17 items; at most 16 are allowed",
        ),
        (
            {"stop": ["a", "b" * 1025]},
            "stop",
            "stop holds a string of 1025 characters; at most 1024 are allowed",
        ),
        ({"stop": ["a", 1]}, "stop.1", "stop.1 is 1; it must be a string"),
        ({"stop": 5}, "stop", "stop is 5; it must be a list"),
        (
            {"stop_token_ids": [1, -1]},
            "stop_token_ids.1",
            "stop_token_ids.1 is -1; the least allowed is 0",
        ),
        (
            {"stop_token_ids": [3] * 257},
            "stop_token_ids",
            "stop_token_ids has 257 items; at most 256 are allowed",
        ),
        ({"ignore_eos": 1}, "ignore_eos", "ignore_eos is 1; it must be true or false"),
        ({"stream": "true"}, "stream", "stream is 'true'; it must be true or false"),
        (
            {"stream_options": {"include_usage": True}},
            "stream_options",
            "stream_options is only allowed with stream: true",
        ),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
            "stream_options.include_usage is 1; it must be true or false",
        ),
        (
            {"stream": True, "stream_options": {"includ_usage": True}},
            "stream_options.includ_usage",
            "'includ_usage' is not a field of this request; did you mean include_usage? "
            "(in stream_options)",
        ),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": 0}},
            "stream_options.continuous_usage_stats",
            "stream_options.continuous_usage_stats is 0; it must be true or false",
        ),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
            "stream_options.continuous_usage_stats is true; allowed is false",
        ),
        ({"priority": 2**31}, "priority", "priority is 2147483648; the most allowed is 2147483647"),
        ({"cache_salt": ""}, "cache_salt", "cache_salt is ''; it must not be empty"),
        (
            {"cache_salt": "s" * 257},
            "cache_salt",
            "cache_salt has 257 characters; at most 256 are allowed",
        ),
        ({"model": 5}, "model", "model is 5; it must be a string"),
        ({"messages": None}, "messages", "messages is null; it must be a list"),
        ({"messages": []}, "messages", "messages is []; it must not be empty"),
        ({"messages": "hi"}, "messages", "messages is 'hi'; it must be a list"),
        ({"messages": ["hi"]}, "messages.0", "messages.0 is 'hi'; it must be an object"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "messages.0.content is missing"),
        (
            {"messages": [{"role": "user", "content": None}]},
            "messages.0.content",
            "messages.0.content is null; it must be a string",
        ),
        (
            {"messages": [USER, {"role": "robot", "content": "x"}]},
            "messages.1.role",
            "messages.1.role is 'robot'; allowed is 'system', 'developer', 'user' or 'assistant'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.0.content.0.type",
            "messages.0.content.0.type is 'image_url'; this server does not serve images and "
            "accepts only 'text'",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
                ]
            },
            "messages.0.content.0.type",
            "messages.0.content.0.type is 'image_url'; this server does not serve images and "
            "accepts only 'text'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "hologram", "text": ""}]}]},
            "messages.0.content.0.type",
            "messages.0.content.0.type is 'hologram'; allowed is 'text'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
            "messages.0.content.0.text",
            "messages.0.content.0.text is 1; it must be a string",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]},
            "messages.0.tool_calls",
            "messages.0.tool_calls is a list of 1; this server does not serve tool calls and "
            "accepts only null or []",
        ),
        (
            {"messages": [USER, {"role": "tool", "tool_call_id": "c", "content": "x"}]},
            "messages.1.role",
            "messages.1.role is 'tool'; this server does not serve tool calls and accepts only "
            "'system' or 'developer' or 'user' or 'assistant'",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "tool_call": None}]},
            "messages.0.tool_call",
            "'tool_call' is not a field of this request (in messages.0)",
        ),
        (
            {"continue_final_message": True},
            "continue_final_message",
            "continue_final_message is true, but the final message's role is user; "
            "it must be assistant",
        ),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "continue_final_message and add_generation_prompt are both true; only one is allowed",
        ),
        (
            {"chat_template_kwargs": {"tools": []}},
            "chat_template_kwargs",
            "chat_template_kwargs may not hold tools: the request's own field says it",
        ),
        (
            {"chat_template_kwargs": []},
            "chat_template_kwargs",
            "chat_template_kwargs is []; it must be an object",
        ),
    ],
)
async def test_chat(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str, message: str | None
) -> None:
    answer = await client.post("/v1/chat/completions", json={"messages": [USER], **fields})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert message is None or error["message"] == message


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({}, "prompt", "prompt is missing"),
        ({"prompt": None}, "prompt", "prompt is null; it must be a string"),
        ({"prompt": ""}, "prompt", "prompt is empty; at least one token is needed"),
        ({"prompt": []}, "prompt", "prompt is []; it must not be empty"),
        ({"prompt": 5}, "prompt", "prompt is 5; it must be a string"),
        ({"prompt": ["a"] * 129}, "prompt", "prompt has 129 items; at most 128 are allowed"),
        ({"prompt": ["a", 5]}, "prompt.1", "prompt.1 is 5; it must be a string"),
        ({"prompt": [[1], []]}, "prompt.1", "prompt.1 is []; it must not be empty"),
        ({"prompt": [[1], [2, "x"]]}, "prompt.1.1", "prompt.1.1 is 'x'; it must be an integer"),
        ({"prompt": ["a", ""]}, "prompt.1", "prompt.1 is empty; at least one token is needed"),
        (
            {"prompt": ["a"] * 41, "n": 16},
            "prompt",
            "prompt has 41 prompts of 16 choices each; at most 640 choices fit into the seats and "
            "the queue here",
        ),
        ({"prompt": "a", "logprobs": -1}, "logprobs", "logprobs is -1; allowed is [0, 2147483647]"),
        (
            {"prompt": "a", "logprobs": 21},
            "logprobs",
            "logprobs is 21; allowed is [0, 20], the server's --max-logprobs",
        ),
        ({"prompt": "a", "logprobs": True}, "logprobs", "logprobs is true; it must be an integer"),
        ({"prompt": [1, "b"]}, "prompt.1", "prompt.1 is 'b'; it must be an integer"),
        ({"prompt": [1, True]}, "prompt.1", "prompt.1 is true; it must be an integer"),
        ({"prompt": [1, -1]}, "prompt.1", "prompt.1 is -1; the least allowed is 0"),
        (
            {"prompt": [1, 259]},
            "prompt",
            "prompt holds the token id 259; allowed is [0, 258]",
        ),
        (
            {"prompt": "x" * 512},
            "prompt",
            "prompt has 512 tokens; at most 511 are allowed: the context is 512 tokens, "
            "one is kept for the output",
        ),
        (
            {"prompt": "x", "max_tokens": 512},
            "max_tokens",
            "max_tokens is 512; allowed is [1, 511]: the context is 512 tokens and prompt has 1",
        ),
    ],
)
async def test_completion(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str, message: str
) -> None:
    answer = await client.post("/v1/completions", json=fields)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["param"], error["message"]) == (param, message)


@pytest.mark.parametrize(
    ("path", "fields", "param", "message"),
    [
        ("/tokenize", {}, "prompt", "give either prompt or messages"),
        (
            "/tokenize",
            {"prompt": "x", "messages": [USER]},
            "prompt",
            "give either prompt or messages",
        ),
        (
            "/tokenize",
            {"prompt": "x", "add_generation_prompt": True},
            "add_generation_prompt",
            "add_generation_prompt is only allowed with messages",
        ),
        (
            "/tokenize",
            {"messages": [USER], "add_special_tokens": True},
            "add_special_tokens",
            "add_special_tokens is true; with messages the template writes them, "
            "only false is allowed",
        ),
        ("/tokenize", {"promt": "x"}, "promt", None),
        ("/detokenize", {}, "tokens", "tokens is missing"),
        ("/detokenize", {"tokens": [1.0]}, "tokens.0", "tokens.0 is 1.0; it must be an integer"),
        (
            "/detokenize",
            {"tokens": [259]},
            "tokens",
            "tokens holds the token id 259; allowed is [0, 258]",
        ),
    ],
)
async def test_tokens(
    client: httpx.AsyncClient,
    path: str,
    fields: dict[str, Any],
    param: str,
    message: str | None,
) -> None:
    answer = await client.post(path, json=fields)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == param
    assert message is None or error["message"] == message


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not valid JSON: "),
        (b"{", "the body is not valid JSON: "),
        (b'{"prompt": NaN}', "the body is not valid JSON: "),
        (b'{"temperature": Infinity}', "the body is not valid JSON: "),
        (b'{"temperature": 1e999}', "the body is not valid JSON: "),
        (b'{"prompt": "\xff"}', "the body is not valid JSON: "),
        (b'{"prompt": "\\ud800"}', "the body is not valid JSON: "),
        (b'{"prompt": "\\udc00 x"}', "the body is not valid JSON: "),
        (b"[" * 100_000, "the body is not valid JSON: it is nested too deeply"),
        (b'{"prompt":' * 10_000, "the body is not valid JSON: it is nested too deeply"),
        (b"[]", "the body is a JSON array; it must be an object"),
        (b'"text"', "the body is a JSON string; it must be an object"),
        (b"null", "the body is a JSON null; it must be an object"),
        (b"1", "the body is a JSON number; it must be an object"),
        (b"true", "the body is a JSON boolean; it must be an object"),
    ],
)
async def test_bodies_that_are_no_json_object(
    client: httpx.AsyncClient, path: str, body: bytes, message: str
) -> None:
    answer = await client.post(path, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize("depth", [100, 900])
@pytest.mark.parametrize("name", ["messages", "logit_bias", "chat_template_kwargs", "stop", "qq"])
async def test_nested_values_are_refused_not_followed(
    client: httpx.AsyncClient, name: str, depth: int
) -> None:
    value = b'{"a":' * depth + b"1" + b"}" * depth
    body = b'{"messages":[{"role":"user","content":"x"}],"%s":%s}' % (name.encode(), value)
    answer = await client.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name


async def test_a_million_wrong_items_make_one_short_message(client: httpx.AsyncClient) -> None:
    body = {"prompt": [True] * 1_000_000}
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "prompt.0 is true; it must be an integer"
    many = {f"x{i}": 1 for i in range(100_000)}
    answer = await client.post("/v1/chat/completions", json={"messages": [many]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages.0.x0"


async def test_answers_can_be_sent_back_as_history(client: httpx.AsyncClient) -> None:
    first = await client.post("/v1/chat/completions", json={"messages": [USER], "max_tokens": 2})
    history = {
        **first.json()["choices"][0]["message"],
        "tool_calls": None,
        "function_call": None,
        "audio": None,
        "annotations": [],
    }
    body = {"messages": [USER, history, USER], "max_tokens": 2}
    assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


async def test_text_parts_roles_and_templates_reach_the_prompt(client: httpx.AsyncClient) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "d"}, {"role": "user", "content": parts}]

    async def prompt(**fields: Any) -> str:
        answer = await client.post("/tokenize", json={"messages": messages, **fields})
        tokens = answer.json()["tokens"]
        return str((await client.post("/detokenize", json={"tokens": tokens})).json()["prompt"])

    assert await prompt() == "[system]d[user]a\nb[assistant]"
    assert await prompt(add_generation_prompt=False) == "[system]d[user]a\nb"
    messages.append({"role": "assistant", "content": "so"})
    assert await prompt(continue_final_message=True) == "[system]d[user]a\nb[assistant]so"
