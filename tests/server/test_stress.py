"""64 streams at once, with readers that leave and readers that stall: nothing is lost or leaked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from refectory_server.core.request import FinishReason
from refectory_server.testing.raw_http import post, raw_connection
from refectory_server.testing.server_process import ServerProcess, server_process
from refectory_server.testing.simulated_profile import expected_text, write_profile

NUM_LEAVING, NUM_STALLED, NUM_READING = 21, 6, 37
LONG_TOKENS = 1200
"""More than a second, at a millisecond a step."""
TINY_BUFFER = 2048


def draw_prompt(draw: random.Random) -> bytes:
    return bytes(draw.choices(range(97, 123), k=draw.randint(1, 200)))


def make_body(prompt: bytes, seed: int, max_tokens: int) -> dict[str, object]:
    return {"prompt": prompt.decode(), "seed": seed, "max_tokens": max_tokens, "stream": True}


async def read_on(client: httpx.AsyncClient, draw: random.Random) -> None:
    """A reader that stays: it gets the tokens that it would get alone."""
    prompt, seed, num_tokens = draw_prompt(draw), draw.randrange(1000), draw.randint(20, 300)
    body = make_body(prompt, seed, num_tokens)
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        lines = [line async for line in answer.aiter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    choices = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
    assert "".join(c["text"] for c in choices) == expected_text(prompt, num_tokens, seed)
    reasons = [c["finish_reason"] for c in choices]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]


async def leave(port: int, draw: random.Random) -> None:
    """A reader that goes away in the middle, perhaps before its first token."""
    body = make_body(draw_prompt(draw), 0, LONG_TOKENS)
    stay_s = draw.uniform(0, 0.8)
    async with raw_connection(port) as (reader, writer):
        writer.write(post("/v1/completions", body))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(stay_s):
                await reader.read(-1)


async def stall(port: int, draw: random.Random, connections: AsyncExitStack) -> None:
    """A reader that takes the head of its answer and then nothing, until `connections` close."""
    message = {"role": "user", "content": draw_prompt(draw).decode()}
    # Log-probabilities make long chunks: the kernel's buffers on the way fill up.
    body = {
        "messages": [message],
        "max_tokens": LONG_TOKENS,
        "stream": True,
        "logprobs": True,
        "top_logprobs": 20,
    }
    connection = raw_connection(port, receive_buffer=TINY_BUFFER)
    reader, writer = await connections.enter_async_context(connection)
    writer.write(post("/v1/chat/completions", body))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")


async def until_idle(client: httpx.AsyncClient, *, num_in_flight: int) -> None:
    """Nothing runs, nothing waits, all blocks are free; so many responses are still being sent."""
    idle = {"running": 0, "waiting": 0, "kv_cache_usage": 0, "in_flight": num_in_flight}
    deadline = time.monotonic() + 30
    while not idle.items() <= (load := (await client.get("/load")).json()).items():
        assert time.monotonic() < deadline, load
        await asyncio.sleep(0.02)


async def samples_of(client: httpx.AsyncClient) -> dict[tuple[str, str | None], float]:
    """/metrics: (name, reason of a finish, if it has one) -> value."""
    text = (await client.get("/metrics")).text
    return {
        (sample.name, sample.labels.get("finished_reason")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def run_clients(server: ServerProcess) -> dict[tuple[str, str | None], float]:
    """All 64 at once, mixed; the metrics once everyone has gone."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:
        async with AsyncExitStack() as connections:
            draws = [random.Random(seed) for seed in range(NUM_LEAVING + NUM_STALLED + NUM_READING)]
            clients = [leave(server.port, draw) for draw in draws[:NUM_LEAVING]]
            clients += [stall(server.port, d, connections) for d in draws[NUM_LEAVING:-NUM_READING]]
            clients += [read_on(client, draw) for draw in draws[-NUM_READING:]]
            random.Random(0).shuffle(clients)
            await asyncio.gather(*clients)
            # Nobody waits for those that stall: their requests have ended, their streams have not.
            await until_idle(client, num_in_flight=NUM_STALLED)
        await until_idle(client, num_in_flight=0)
        return await samples_of(client)


@pytest.mark.parametrize(("num_blocks", "is_tight"), [(4096, False), (128, True)])
def test_readers_that_leave_or_stall_cost_the_others_nothing(
    tmp_path: Path, num_blocks: int, is_tight: bool
) -> None:
    profile = write_profile(tmp_path, num_blocks=num_blocks, max_model_len=1600)
    with server_process(f"--simulate={profile}", "--max-num-queued-reqs=64") as server:
        server.wait_until_ready()
        samples = asyncio.run(run_clients(server))
        assert "Traceback" not in server.output
    assert samples["vllm:num_requests_running", None] == 0
    assert samples["vllm:num_requests_waiting", None] == 0
    assert samples["vllm:kv_cache_usage_perc", None] == 0
    assert (samples["vllm:num_preemptions_total", None] > 0) is is_tight
    ended = {reason: samples["vllm:request_success_total", reason] for reason in FinishReason}
    num_length, num_abort = ended.pop(FinishReason.LENGTH), ended.pop(FinishReason.ABORT)
    assert num_length >= NUM_STALLED + NUM_READING
    assert num_abort > 0
    # Fewer where one left before its request was read.
    assert num_length + num_abort <= NUM_LEAVING + NUM_STALLED + NUM_READING
    assert set(ended.values()) == {0}
