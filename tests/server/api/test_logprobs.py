"""Log-probabilities in both routes' shapes, whole and streamed, through the official client."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from refectory_server.api.logprobs import chat_logprobs, completion_logprobs
from refectory_server.core.scheduler_output import TokenLogprobs
from refectory_server.engine.text_logprobs import TextLogprobs
from refectory_server.testing.simulated_app import SimulatedApp, running_server
from refectory_server.testing.simulated_profile import expected_text
from refectory_server.tokenizer.byte_tokenizer import ByteTokenizer

pytestmark = pytest.mark.anyio


MESSAGES: Any = [{"role": "user", "content": "hi"}]
CHAT_TEXT = expected_text(b"[user]hi[assistant]", 5)
COMPLETION_TEXT = expected_text(b"hi", 5)
LOGPROB = -math.log(27)
"""The simulated model's for every letter."""


@pytest.fixture
async def ai(api: SimulatedApp) -> AsyncIterator[openai.AsyncOpenAI]:
    async with running_server(api) as running:
        url = f"{running.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as ai:
            yield ai


async def test_a_chat(ai: openai.AsyncOpenAI) -> None:
    answer = await ai.chat.completions.create(
        model="sim", messages=MESSAGES, max_tokens=5, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(entry.token for entry in logprobs.content) == CHAT_TEXT
    for letter, entry in zip(CHAT_TEXT, logprobs.content, strict=True):
        assert (entry.token, entry.bytes) == (letter, [ord(letter)])
        assert entry.logprob == pytest.approx(LOGPROB)
        assert [top.token for top in entry.top_logprobs] == [letter, "b" if letter == "a" else "a"]
        assert [top.logprob for top in entry.top_logprobs] == pytest.approx([LOGPROB] * 2)


async def test_a_chat_stream_says_the_same(ai: openai.AsyncOpenAI) -> None:
    fields: Any = {"model": "sim", "messages": MESSAGES, "max_tokens": 5, "logprobs": True}
    whole = await ai.chat.completions.create(**fields)
    assert whole.choices[0].logprobs is not None
    streamed: list[Any] = []
    async for chunk in await ai.chat.completions.create(**fields, stream=True):
        choice = chunk.choices[0]
        entries = choice.logprobs.content or [] if choice.logprobs else []
        assert "".join(entry.token for entry in entries) == (choice.delta.content or "")
        streamed += entries
    assert streamed == whole.choices[0].logprobs.content
    assert all(entry.top_logprobs == [] for entry in streamed)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_completion(ai: openai.AsyncOpenAI, is_stream: bool) -> None:
    fields: Any = {"model": "sim", "prompt": "hi", "max_tokens": 5, "logprobs": 1}
    if is_stream:
        chunks = [chunk async for chunk in await ai.completions.create(**fields, stream=True)]
        parts = [chunk.choices[0].logprobs for chunk in chunks]
    else:
        parts = [(await ai.completions.create(**fields)).choices[0].logprobs]
    tokens: list[str] = []
    offsets: list[int] = []
    for part in parts:
        if part is not None:
            assert part.token_logprobs == pytest.approx([LOGPROB] * len(part.tokens or []))
            assert [list(top) for top in part.top_logprobs or []] == [
                [token] for token in part.tokens or []
            ]
            tokens += part.tokens or []
            offsets += part.text_offset or []
    assert (tokens, offsets) == (list(COMPLETION_TEXT), [0, 1, 2, 3, 4])


@pytest.mark.parametrize("is_included", [False, True])
async def test_what_a_stop_string_cuts_has_no_entry(
    ai: openai.AsyncOpenAI, is_included: bool
) -> None:
    answer = await ai.completions.create(
        model="sim",
        prompt="hi",
        max_tokens=5,
        stop=COMPLETION_TEXT[2:4],
        logprobs=0,
        extra_body={"include_stop_str_in_output": is_included},
    )
    text = COMPLETION_TEXT[: 4 if is_included else 2]
    choice = answer.choices[0]
    assert choice.text == text
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == list(text)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


async def test_without_being_asked_for_there_are_none(client: httpx.AsyncClient) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": MESSAGES, "logprobs": False}),
        ("/v1/completions", {"prompt": "hi"}),
    ):
        for is_stream in (False, True):
            answer = await client.post(path, json={**body, "max_tokens": 2, "stream": is_stream})
            texts = [answer.text]
            if is_stream:
                events = answer.text.removesuffix("data: [DONE]\n\n").split("\n\n")
                texts = [event.removeprefix("data: ") for event in events if event]
            for text in texts:
                assert json.loads(text)["choices"][0]["logprobs"] is None


def entry(token_id: int, offset: int, *, is_in_text: bool = True, **logprobs: Any) -> TextLogprobs:
    return TextLogprobs(
        token_id,
        TokenLogprobs(**{"logprob": -1.0, "rank": 1, "top": (), **logprobs}),
        offset,
        is_in_text,
    )


def test_half_characters() -> None:
    entries = [
        entry(0xE2, 0, top=((0xE2, -1.0), (0xE3, -2.0))),
        entry(0x82, 0),
        entry(0xAC, 0),
        entry(97, 1),
        entry(98, 2, is_in_text=False),
    ]
    chat = chat_logprobs(entries, ByteTokenizer()).content
    assert bytes(byte for item in chat for byte in item.bytes).decode() == "€a"
    assert [item.token for item in chat] == ["\ufffd", "\ufffd", "\ufffd", "a"]
    assert [top.bytes for top in chat[0].top_logprobs] == [[0xE2], [0xE3]]
    plain = completion_logprobs(entries, ByteTokenizer())
    assert plain.tokens == ["bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "a"]
    assert plain.top_logprobs[0] == {"bytes:\\xe2": -1.0, "bytes:\\xe3": -2.0}
    assert plain.text_offset == [0, 0, 0, 1]


def test_the_chosen_token_is_always_among_a_completions_top_ones() -> None:
    plain = completion_logprobs([entry(97, 0, logprob=-7.5, top=((98, -0.5),))], ByteTokenizer())
    assert plain.top_logprobs == [{"b": -0.5, "a": -7.5}]
    assert plain.token_logprobs == [-7.5]


def test_a_token_that_is_ruled_out_has_a_number_that_json_has() -> None:
    entries = [entry(97, 0, top=((98, -0.0), (99, -math.inf)))]
    chat = chat_logprobs(entries, ByteTokenizer())
    assert chat.content[0].top_logprobs[1].logprob == -9999.0
    assert json.loads(chat.model_dump_json())["content"][0]["top_logprobs"][1]["logprob"] == -9999
    assert completion_logprobs(entries, ByteTokenizer()).top_logprobs[0]["c"] == -9999.0
