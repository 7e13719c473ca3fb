"""n choices and lists of prompts: indices, usage, streams, one refusal, one disconnect for all."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from refectory_server.config import SchedulerConfig
from refectory_server.testing.simulated_app import SimulatedApp, running_server, simulated_app
from refectory_server.testing.simulated_profile import expected_text

pytestmark = pytest.mark.anyio

MESSAGES: Any = [{"role": "user", "content": "hi"}]
CHAT_PROMPT = b"[user]hi[assistant]"


@pytest.fixture
async def ai(api: SimulatedApp) -> AsyncIterator[openai.AsyncOpenAI]:
    async with running_server(api) as running:
        url = f"{running.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as ai:
            yield ai


async def test_choices_of_a_chat(ai: openai.AsyncOpenAI) -> None:
    answer = await ai.chat.completions.create(
        model="sim", messages=MESSAGES, max_tokens=6, n=3, seed=40
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.message.content for choice in answer.choices] == [
        expected_text(CHAT_PROMPT, 6, seed) for seed in (40, 41, 42)
    ]
    assert [choice.finish_reason for choice in answer.choices] == ["length"] * 3
    usage = answer.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (19, 18, 37)


async def test_choices_without_a_seed_differ(ai: openai.AsyncOpenAI) -> None:
    answer = await ai.chat.completions.create(model="sim", messages=MESSAGES, max_tokens=8, n=4)
    assert len({choice.message.content for choice in answer.choices}) == 4


async def test_a_chat_stream_of_choices(ai: openai.AsyncOpenAI) -> None:
    stream = await ai.chat.completions.create(
        model="sim",
        messages=MESSAGES,
        max_tokens=6,
        n=3,
        seed=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = [chunk async for chunk in stream]
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (19, 18)
    for index in range(3):
        own = [c.choices[0] for c in chunks if c.choices[0].index == index]
        assert [choice.delta.role for choice in own] == ["assistant"] + [None] * (len(own) - 1)
        text = "".join(choice.delta.content or "" for choice in own)
        assert text == expected_text(CHAT_PROMPT, 6, seed=40 + index)
        assert [c.finish_reason for c in own] == [None] * (len(own) - 1) + ["length"]


async def test_choices_interleave(client: httpx.AsyncClient) -> None:
    body = {"prompt": "hi", "max_tokens": 3, "n": 2, "stream": True}
    answer = await client.post("/v1/completions", json=body)
    order = [int(index) for index in re.findall(r'"index":(\d)', answer.text)]
    assert set(order) == {0, 1}
    # Neither choice waits for the other's end.
    assert order not in (sorted(order), sorted(order, reverse=True))


@pytest.mark.parametrize("is_stream", [False, True])
async def test_prompts_and_choices(ai: openai.AsyncOpenAI, is_stream: bool) -> None:
    fields: Any = {
        "model": "sim",
        "prompt": ["first", "the second", "first"],
        "n": 2,
        "max_tokens": 5,
        "seed": 7,
    }
    expected = [
        expected_text(prompt, 5, seed)
        for prompt in (b"first", b"the second", b"first")
        for seed in (7, 8)
    ]
    if not is_stream:
        answer = await ai.completions.create(**fields)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3, 4, 5]
        assert [choice.text for choice in answer.choices] == expected
        usage = answer.usage
    else:
        options: Any = {"include_usage": True}
        stream = await ai.completions.create(**fields, stream=True, stream_options=options)
        *chunks, last = [chunk async for chunk in stream]
        texts = [""] * 6
        for chunk in chunks:
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert texts == expected
        usage = last.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (5 + 10 + 5, 30)


@pytest.mark.parametrize("prompts", [["first", "the second"], [[*b"first"], [*b"the second"]]])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_each_text_begins_with_its_prompt_if_asked_for(
    ai: openai.AsyncOpenAI, prompts: Any, is_stream: bool
) -> None:
    fields: Any = {"model": "sim", "prompt": prompts, "n": 2, "max_tokens": 5, "seed": 7}
    expected = [
        prompt.decode() + expected_text(prompt, 5, seed)
        for prompt in (b"first", b"the second")
        for seed in (7, 8)
    ]
    texts = [""] * 4
    if is_stream:
        async for chunk in await ai.completions.create(**fields, echo=True, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
    else:
        answer = await ai.completions.create(**fields, echo=True)
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (15, 20)
        texts = [choice.text for choice in answer.choices]
    assert texts == expected


async def test_cached_tokens_count_once_a_prompt(ai: openai.AsyncOpenAI) -> None:
    for expected in (0, 2 * 32):
        answer = await ai.completions.create(
            model="sim", prompt=["x" * 40, "y" * 40], n=3, max_tokens=2
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == expected
        assert answer.usage.prompt_tokens == 80


async def test_each_choice_has_its_own_end(ai: openai.AsyncOpenAI) -> None:
    texts = [expected_text(b"hi", 30, seed) for seed in range(3)]
    stop = texts[1][4:7]
    answer = await ai.completions.create(model="sim", prompt="hi", n=3, max_tokens=30, stop=stop)
    assert [choice.text for choice in answer.choices] == [texts[0], texts[1][:4], texts[2]]
    assert [c.finish_reason for c in answer.choices] == ["length", "stop", "length"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 30 + 7 + 30


async def test_the_stop_string_in_the_output_if_asked_for(ai: openai.AsyncOpenAI) -> None:
    text = expected_text(b"hi", 30)
    answer = await ai.completions.create(
        model="sim",
        prompt="hi",
        max_tokens=30,
        stop=text[4:7],
        extra_body={"include_stop_str_in_output": True},
    )
    assert answer.choices[0].text == text[:7]
    answer = await ai.completions.create(
        model="sim", prompt="hi", max_tokens=30, stop=text[4:7], extra_body={"min_tokens": 7}
    )
    assert answer.choices[0].text == text


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_full_queue_refuses_all_choices_with_one_answer(is_stream: bool) -> None:
    limits = SchedulerConfig(max_num_seqs=2, max_num_queued_reqs=4)
    async with simulated_app(scheduler=limits) as api:

        def ask(**body: Any) -> asyncio.Task[httpx.Response]:
            body = {"max_tokens": 3, **body}
            return asyncio.create_task(api.client.post("/v1/completions", json=body))

        async def wait_for_choices(count: int) -> None:
            while api.engine.num_in_flight < count:
                await asyncio.sleep(0.001)

        api.gate.close()
        running = ask(prompt="x", n=2)
        await wait_for_choices(2)
        while not api.engine.stats.num_running:
            await asyncio.sleep(0.001)
        # The engine is held in a step: all of these are taken together after it.
        waiting = [ask(prompt="y"), ask(prompt="z")]
        await wait_for_choices(4)
        refused = ask(prompt=["a", "b"], n=2, stream=is_stream)
        await wait_for_choices(8)
        api.gate.open()
        answer = await refused
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "queue_full"
        assert int(answer.headers["retry-after"]) >= 1
        assert [(await task).status_code for task in (running, *waiting)] == [200] * 3
        samples = await api.samples()
        reason = frozenset({("reason", "max_num_queued_reqs")})
        assert samples["refectory_requests_rejected_total", reason] == 1
        assert samples["vllm:request_params_n_count", frozenset()] == 3


async def test_a_client_that_leaves_ends_every_choice() -> None:
    async with simulated_app() as api, running_server(api) as running:
        body = {"prompt": ["a", "b"], "n": 3, "max_tokens": 400, "stream": True}
        async with httpx.AsyncClient(timeout=30) as client:
            url = f"{running.url}/v1/completions"
            async with client.stream("POST", url, json=body) as answer:
                await anext(answer.aiter_lines())
                assert api.engine.num_in_flight == 6
        async with asyncio.timeout(10):
            while api.engine.num_in_flight or api.behind.core.has_work:
                await asyncio.sleep(0.001)
        stats = api.engine.stats
        assert stats.num_free_blocks == stats.num_blocks


async def test_more_choices_than_may_ever_run_are_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/completions", json={"prompt": "hi", "n": 129})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "n is 129; allowed is [1, 128]"
