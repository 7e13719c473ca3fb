"""Chat and plain completions through the official client: shapes, usage, finish reasons."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from refectory_server.testing.simulated_app import SimulatedApp, running_server
from refectory_server.testing.simulated_profile import expected_text

pytestmark = pytest.mark.anyio


MESSAGES: Any = [{"role": "user", "content": "hi"}]
CHAT_TEXT = expected_text(b"[user]hi[assistant]", 5)
COMPLETION_TEXT = expected_text(b"hi", 5)
STOP = CHAT_TEXT[2:4]


@pytest.fixture
async def ai(api: SimulatedApp) -> AsyncIterator[openai.AsyncOpenAI]:
    async with running_server(api) as running:
        url = f"{running.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as ai:
            yield ai


async def test_a_chat_answer(ai: openai.AsyncOpenAI) -> None:
    answer = await ai.chat.completions.create(model="sim", messages=MESSAGES, max_tokens=5)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == "sim"
    [choice] = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert (choice.message.role, choice.message.content) == ("assistant", CHAT_TEXT)
    usage = answer.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (19, 5, 24)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 0


async def test_cached_tokens_are_reported_unless_the_salt_differs(ai: openai.AsyncOpenAI) -> None:
    async def num_cached(salt: str | None) -> int | None:
        answer = await ai.completions.create(
            model="sim", prompt="x" * 40, extra_body={"cache_salt": salt}
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens

    assert [await num_cached(s) for s in (None, None, "a", "a", None)] == [0, 32, 0, 32, 32]


@pytest.mark.parametrize("includes_usage", [False, True])
async def test_a_chat_stream(ai: openai.AsyncOpenAI, includes_usage: bool) -> None:
    options: Any = {"include_usage": True} if includes_usage else None
    stream = await ai.chat.completions.create(
        model="sim", messages=MESSAGES, max_tokens=5, stream=True, stream_options=options
    )
    chunks = [chunk async for chunk in stream]
    usages = [chunk.usage for chunk in chunks]
    if includes_usage:
        last = chunks.pop()
        assert last.choices == []
        assert last.usage is not None
        assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (19, 5)
        usages.pop()
    assert usages == [None] * len(chunks)
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    choices = [chunk.choices[0] for chunk in chunks]
    assert [choice.delta.role for choice in choices] == ["assistant"] + [None] * (len(chunks) - 1)
    assert "".join(choice.delta.content or "" for choice in choices) == CHAT_TEXT
    assert [c.finish_reason for c in choices] == [None] * (len(choices) - 1) + ["length"]
    assert choices[-1].delta.content is None


async def test_a_completion(ai: openai.AsyncOpenAI) -> None:
    answer = await ai.completions.create(model="sim", prompt="hi", max_tokens=5)
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    [choice] = answer.choices
    assert (choice.text, choice.finish_reason) == (COMPLETION_TEXT, "length")


async def test_a_completion_stream(ai: openai.AsyncOpenAI) -> None:
    stream = await ai.completions.create(
        model="sim",
        prompt="hi",
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == COMPLETION_TEXT
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.total_tokens == 7


@pytest.mark.parametrize("prompt", ["hi", ["hi"], [104, 105], [[104, 105]]])
async def test_prompts_in_each_form_say_the_same(ai: openai.AsyncOpenAI, prompt: Any) -> None:
    answer = await ai.completions.create(model="sim", prompt=prompt, max_tokens=5)
    assert answer.choices[0].text == COMPLETION_TEXT


async def test_a_completion_has_16_tokens_unless_told_or_the_context_ends(
    ai: openai.AsyncOpenAI,
) -> None:
    answer = await ai.completions.create(model="sim", prompt="hi")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    answer = await ai.completions.create(model="sim", prompt="x" * 505)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7


async def test_a_chat_goes_on_to_the_end_of_the_context(ai: openai.AsyncOpenAI) -> None:
    answer = await ai.chat.completions.create(model="sim", messages=MESSAGES)
    assert answer.usage is not None
    assert answer.usage.total_tokens == 512
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stop", [STOP, ["zzz", STOP]])
async def test_a_stop_string_ends_the_text_before_itself(ai: openai.AsyncOpenAI, stop: Any) -> None:
    answer = await ai.chat.completions.create(
        model="sim", messages=MESSAGES, max_tokens=5, stop=stop
    )
    assert answer.choices[0].message.content == CHAT_TEXT[:2]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4  # ids, those of the stop string included


async def test_a_stop_token_ends_the_text(ai: openai.AsyncOpenAI) -> None:
    answer = await ai.chat.completions.create(
        model="sim", messages=MESSAGES, max_tokens=5, extra_body={"stop_token_ids": [ord(STOP[0])]}
    )
    assert answer.choices[0].message.content == CHAT_TEXT[:2]
    assert answer.choices[0].finish_reason == "stop"


async def test_a_missing_model_is_the_served_one_and_every_name_is_known(
    client: httpx.AsyncClient,
) -> None:
    for asked_for, answered in ((None, "sim"), ("sim", "sim"), ("sim-alias", "sim-alias")):
        body = {"model": asked_for, "messages": MESSAGES, "max_tokens": 1}
        answer = await client.post("/v1/chat/completions", json=body)
        assert answer.json()["model"] == answered


async def test_models(ai: openai.AsyncOpenAI) -> None:
    models = (await ai.models.list()).data
    assert [model.id for model in models] == ["sim", "sim-alias"]
    assert (await ai.models.retrieve("sim-alias")).id == "sim-alias"
    with pytest.raises(openai.NotFoundError) as error:
        await ai.models.retrieve("org/other")
    assert error.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError) as error:
        await ai.chat.completions.create(model="other", messages=MESSAGES)
    assert error.value.code == "model_not_found"
    assert error.value.param == "model"
    assert "served: sim, sim-alias" in error.value.message


async def test_a_stream_ends_with_done_and_is_not_buffered_by_proxies(
    client: httpx.AsyncClient,
) -> None:
    body = {"prompt": "hi", "max_tokens": 1, "stream": True}
    answer = await client.post("/v1/completions", json=body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    *events, end = answer.text.split("\n\n")
    assert end == ""
    assert events[-1] == "data: [DONE]"
    assert [json.loads(event.removeprefix("data: "))["object"] for event in events[:-1]] == [
        "text_completion",
        "text_completion",
    ]


async def test_request_ids_are_echoed_and_unique_inside(api: SimulatedApp) -> None:
    async def ask(headers: dict[bytes, bytes]) -> httpx.Response:
        body = {"prompt": "hi", "max_tokens": 1}
        return await api.client.post("/v1/completions", json=body, headers=[*headers.items()])

    first, second = [await ask({b"X-Request-Id": b"mine"}) for _ in range(2)]
    assert first.headers["x-request-id"] == second.headers["x-request-id"] == "mine"
    assert first.json()["id"].startswith("cmpl-mine-")
    assert first.json()["id"] != second.json()["id"]
    made = await ask({})
    assert made.json()["id"].startswith(f"cmpl-{made.headers['x-request-id']}-")
    for unfit in ("two words", "x" * 129, "ü"):
        answer = await ask({b"X-Request-Id": unfit.encode()})
        assert answer.headers["x-request-id"].isalnum()
        assert len(answer.headers["x-request-id"]) == 32


async def test_the_sync_client_over_a_real_port(api: SimulatedApp) -> None:
    def ask(url: str) -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as ai:
            answer = ai.chat.completions.create(model="sim", messages=MESSAGES, max_tokens=5)
            stream = ai.chat.completions.create(
                model="sim", messages=MESSAGES, max_tokens=5, stream=True
            )
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            return answer.choices[0].message.content, streamed

    async with running_server(api) as running:
        assert await asyncio.to_thread(ask, running.url) == (CHAT_TEXT, CHAT_TEXT)
