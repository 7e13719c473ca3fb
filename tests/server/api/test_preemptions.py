"""Who lost the KV blocks on the way has the whole answer, and reads of it in the usage."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from refectory_server.testing.simulated_app import SimulatedApp, simulated_app
from refectory_server.testing.simulated_engine import small_facts
from refectory_server.testing.simulated_profile import expected_text

pytestmark = pytest.mark.anyio

# Each answer grows to 5 of the 8 blocks of 16 tokens: the one that arrived last steps aside.
NUM_BLOCKS = 8
PROMPTS = ("first to arrive.", "last to arrive..")
MAX_TOKENS = 60


async def ask_both(api: SimulatedApp, **changed: Any) -> list[httpx.Response]:
    """Answers to both prompts, which arrive in their order and run in the same steps."""
    api.gate.close()
    asking = []
    for number, prompt in enumerate(PROMPTS, 1):
        body = {"prompt": prompt, "max_tokens": MAX_TOKENS, **changed}
        asking.append(asyncio.create_task(api.client.post("/v1/completions", json=body)))
        while api.engine.num_in_flight < number:
            await asyncio.sleep(0)
    api.gate.open()
    return await asyncio.gather(*asking)


async def test_the_usage_of_whole_answers() -> None:
    async with simulated_app(facts=small_facts(num_blocks=NUM_BLOCKS)) as api:
        answers = [answer.json() for answer in await ask_both(api)]
    assert [answer["usage"]["num_preemptions"] for answer in answers] == [0, 1]
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert answer["choices"][0]["text"] == expected_text(prompt.encode(), MAX_TOKENS)


async def test_the_usage_of_streams() -> None:
    async with simulated_app(facts=small_facts(num_blocks=NUM_BLOCKS)) as api:
        answers = await ask_both(api, stream=True, stream_options={"include_usage": True})
    for answer, num_preemptions in zip(answers, [0, 1], strict=True):
        *_, usage_event, done, _ = answer.text.split("\n\n")
        assert done == "data: [DONE]"
        usage = json.loads(usage_event.removeprefix("data: "))["usage"]
        assert usage["num_preemptions"] == num_preemptions


async def test_a_request_of_two_prompts_counts_them_together() -> None:
    async with simulated_app(facts=small_facts(num_blocks=NUM_BLOCKS)) as api:
        body = {"prompt": PROMPTS, "max_tokens": MAX_TOKENS}
        answer = (await api.client.post("/v1/completions", json=body)).json()
    assert answer["usage"]["num_preemptions"] == 1
