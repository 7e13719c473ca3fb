"""The official openai client and LangChain's ChatOpenAI, unmodified, against a simulated server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import openai
import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from refectory_server.runner.simulated_model_runner import simulated_num_tokens
from refectory_server.testing.server_process import ServerProcess, server_process
from refectory_server.testing.simulated_profile import (
    chat_prompt_ids,
    expected_text,
    write_profile,
)

MEAN_TOKENS = 24
KEY = "a-key"
NUM_RUNNING, NUM_QUEUED, NUM_TOO_MANY = 4, 6, 2
QUESTION = "Where are the keys?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
PROMPT_IDS = chat_prompt_ids(("user", QUESTION))


def answer_to(prompt_token_ids: Sequence[int], seed: int = 0) -> tuple[str, int]:
    """The text and the number of tokens, the end token included."""
    count = simulated_num_tokens(prompt_token_ids, MEAN_TOKENS, seed=seed)
    return expected_text(prompt_token_ids, count - 1, seed), count


ANSWER, NUM_TOKENS = answer_to(PROMPT_IDS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    profile = write_profile(
        tmp_path_factory.mktemp("profile"),
        num_blocks=1024,
        max_model_len=4096,
        mean_output_tokens=MEAN_TOKENS,
    )
    limits = (f"--max-num-seqs={NUM_RUNNING}", f"--max-num-queued-reqs={NUM_QUEUED}")
    with server_process(f"--simulate={profile}", f"--api-key={KEY}", *limits) as process:
        process.wait_until_ready()
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, seed=0)
    [choice] = answer.choices
    assert choice.message.content == ANSWER
    assert (choice.message.role, choice.finish_reason) == ("assistant", "stop")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(PROMPT_IDS)
    assert answer.usage.completion_tokens == NUM_TOKENS
    assert answer.usage.total_tokens == len(PROMPT_IDS) + NUM_TOKENS


def test_a_streamed_chat(client: openai.OpenAI) -> None:
    with client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    ) as stream:
        *chunks, last = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == ANSWER
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks[-2:]] == [None, "stop"]
    assert last.usage is not None
    assert last.usage.completion_tokens == NUM_TOKENS


def test_the_stream_helper_puts_the_message_together(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="tiny", messages=MESSAGES) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == ANSWER


def test_a_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="hello", max_tokens=6, seed=3)
    assert answer.choices[0].text == expected_text(b"hello", 6, seed=3)
    assert answer.choices[0].finish_reason == "length"
    with client.completions.create(
        model="tiny", prompt="hello", max_tokens=6, seed=3, stream=True
    ) as stream:
        assert "".join(c.choices[0].text for c in stream) == expected_text(b"hello", 6, seed=3)


def test_raw_responses_show_the_headers(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="tiny", messages=MESSAGES, extra_headers={"X-Request-Id": "my-id"}
    )
    assert raw.headers["content-type"] == "application/json"
    assert (raw.headers["x-request-id"], raw.request_id) == ("my-id", "my-id")
    assert raw.parse().choices[0].message.content == ANSWER


@pytest.mark.parametrize(
    ("fields", "error_class", "code", "param"),
    [
        ({"temperature": 3}, openai.BadRequestError, None, "temperature"),
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, None, "tools"),
        (
            {"messages": [{"role": "user", "content": "x" * 5000}]},
            openai.BadRequestError,
            "context_length_exceeded",
            "messages",
        ),
        ({"model": "nobody"}, openai.NotFoundError, "model_not_found", "model"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_are_the_clients_own_exceptions(
    client: openai.OpenAI,
    fields: dict[str, Any],
    error_class: type[openai.APIStatusError],
    code: str | None,
    param: str,
    stream: bool,
) -> None:
    with pytest.raises(error_class) as caught:
        client.chat.completions.create(
            **{"model": "tiny", "messages": MESSAGES, "stream": stream, **fields}
        )
    assert type(caught.value) is error_class
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.request_id == caught.value.response.headers["x-request-id"]


def test_a_wrong_key_is_an_authentication_error(server: ServerProcess) -> None:
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong") as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert caught.value.code == "invalid_api_key"


def test_the_async_client_in_a_crowd(server: ServerProcess) -> None:
    """As many at once as the server takes, streaming or not, by both routes."""

    async def chat(client: openai.AsyncOpenAI, seed: int) -> str:
        answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, seed=seed)
        return answer.choices[0].message.content or ""

    async def streamed(client: openai.AsyncOpenAI, seed: int) -> str:
        stream = await client.completions.create(
            model="tiny", prompt="hello", max_tokens=400, seed=seed, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def scenario() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=KEY, max_retries=0
        ) as client:
            half = (NUM_RUNNING + NUM_QUEUED) // 2
            found = await asyncio.gather(
                *(chat(client, seed) for seed in range(half)),
                *(streamed(client, seed) for seed in range(half)),
            )
        assert found[:half] == [answer_to(PROMPT_IDS, seed)[0] for seed in range(half)]
        assert found[half:] == [answer_to(b"hello", seed)[0] for seed in range(half)]

    asyncio.run(scenario())


def test_a_full_queue_is_a_rate_limit_error(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=KEY, max_retries=0
        ) as client:
            long: Any = {"max_tokens": 4000, "extra_body": {"ignore_eos": True}}
            asking = [
                asyncio.create_task(client.completions.create(model="tiny", prompt="hello", **long))
                for _ in range(NUM_RUNNING + NUM_QUEUED + NUM_TOO_MANY)
            ]
            # Those that are taken are answered after those that are not.
            for task in itertools.islice(asyncio.as_completed(asking), NUM_TOO_MANY):
                with pytest.raises(openai.RateLimitError) as caught:
                    await task
                assert caught.value.code == "queue_full"
                assert int(caught.value.response.headers["retry-after"]) >= 1
            for one in asking:
                one.cancel()
            await asyncio.wait(asking)

    asyncio.run(scenario())


def chat_model(server: ServerProcess, **kwargs: Any) -> ChatOpenAI:
    return ChatOpenAI(model="tiny", base_url=f"{server.url}/v1", api_key=SecretStr(KEY), **kwargs)


def test_langchain_invokes(server: ServerProcess) -> None:
    answer = chat_model(server).invoke(QUESTION)
    assert answer.content == ANSWER
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["input_tokens"] == len(PROMPT_IDS)
    assert answer.usage_metadata["output_tokens"] == NUM_TOKENS


def test_langchain_sends_its_parameters(server: ServerProcess) -> None:
    model = chat_model(server, temperature=0.5, top_p=0.9, max_tokens=5, seed=7, stop=["#"])
    messages = [SystemMessage("Be short."), HumanMessage(QUESTION)]
    answer = model.invoke(messages)
    prompt = chat_prompt_ids(("system", "Be short."), ("user", QUESTION))
    assert answer.content == expected_text(prompt, 5, seed=7)
    assert answer.response_metadata["finish_reason"] == "length"


def test_langchain_streams(server: ServerProcess) -> None:
    chunks = list(chat_model(server, stream_usage=True).stream(QUESTION))
    assert len(chunks) > 3
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content == ANSWER
    assert whole.response_metadata["finish_reason"] == "stop"
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == NUM_TOKENS


def test_langchain_batches(server: ServerProcess) -> None:
    questions: list[Any] = [f"What is {i}?" for i in range(4)]
    answers = chat_model(server).batch(questions)
    assert [a.content for a in answers] == [
        answer_to(chat_prompt_ids(("user", q)))[0] for q in questions
    ]


def test_langchain_is_awaited(server: ServerProcess) -> None:
    async def scenario() -> None:
        model = chat_model(server)
        assert (await model.ainvoke(QUESTION)).content == ANSWER
        pieces = [chunk.content async for chunk in model.astream(QUESTION)]
        assert "".join(map(str, pieces)) == ANSWER

    asyncio.run(scenario())


def test_langchain_raises_the_openai_clients_errors(server: ServerProcess) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        chat_model(server, temperature=2.5).invoke(QUESTION)
