"""`run_load`: sends planned requests to a server, streaming, and records what came when.

Open loop by the requests' own times, closed loop by `max_concurrency`; both hold at once. It also
measures itself: a client that is late or has no CPU left would be taken for a slow server.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
import msgspec

from refectory_server.bench.request_record import RequestRecord
from refectory_server.bench.workload import PlannedRequest

LAG_INTERVAL_S = 0.01
MAX_ERROR_CHARS = 300


@dataclass(frozen=True, slots=True)
class LoadResult:
    records: list[RequestRecord]
    """In the order of the plan."""
    duration_s: float
    client_cpu_share: float
    """CPU time of this process over the duration: near 1, its one thread was the limit."""
    client_lags_s: list[float]
    """By how much this client's event loop woke later than it had asked for."""


class _Choice(msgspec.Struct):
    text: str = ""


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, object] | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


def completions_url(base_url: str) -> str:
    """Where to post. Raises `ValueError` for what is no server's URL.

    base_url: the server's, or the one that OpenAI's clients take, which ends in /v1
    """
    try:
        parts = urlsplit(base_url)
        is_server = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of the port, or of brackets
        is_server = False
    if not is_server or parts.query or parts.fragment:
        raise ValueError(
            f"base_url is {base_url!r}; allowed is http(s)://HOST[:PORT], with or without /v1"
        )
    return f"{base_url.rstrip('/').removesuffix('/v1')}/v1/completions"


async def run_load(
    base_url: str,
    plan: Sequence[PlannedRequest],
    *,
    model: str | None = None,
    max_concurrency: int | None = None,
    ignore_eos: bool = True,
) -> LoadResult:
    """Greedy completions; a failed request is a record with an error.

    base_url: see `completions_url`, whose `ValueError` this raises too
    model: None: the one that the server takes where none is named
    """
    url = completions_url(base_url)
    gate = asyncio.Semaphore(max_concurrency or max(1, len(plan)))
    common = {
        "temperature": 0,
        "ignore_eos": ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if model is not None:
        common["model"] = model
    key = os.environ.get("OPENAI_API_KEY")
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"Authorization": f"Bearer {key}"} if key else {},
        json_serialize=lambda body: msgspec.json.encode(body).decode(),
    ) as session:
        lags: list[float] = []
        watch = asyncio.create_task(_watch_lag(lags))
        start, cpu_start = time.perf_counter(), time.process_time()

        async def send(planned: PlannedRequest) -> RequestRecord:
            await asyncio.sleep(max(0.0, start + planned.send_at_s - time.perf_counter()))
            async with gate:
                body = {**common, "prompt": planned.prompt, "max_tokens": planned.max_tokens}
                return await _send(session, url, body)

        records = await asyncio.gather(*map(send, plan))
        duration_s = time.perf_counter() - start
        cpu_share = (time.process_time() - cpu_start) / duration_s
        watch.cancel()
    return LoadResult(list(records), duration_s, cpu_share, lags)


async def _send(session: aiohttp.ClientSession, url: str, body: dict[str, object]) -> RequestRecord:
    record = RequestRecord(time.perf_counter())
    try:
        async with session.post(url, json=body) as answer:
            if answer.status == 200:
                await _read_stream(answer.content, record)
            else:
                record.error = f"{answer.status}: {(await answer.text())[:MAX_ERROR_CHARS]}"
    except (aiohttp.ClientError, msgspec.DecodeError) as error:
        record.error = f"{type(error).__name__}: {error}"
    record.ended_at = time.perf_counter()
    return record


async def _read_stream(lines: aiohttp.StreamReader, record: RequestRecord) -> None:
    num_reported: int | None = None
    is_complete = False
    async for line in lines:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            is_complete = True
            continue
        chunk = _decode_chunk(data)
        if chunk.error is not None:
            record.error = str(chunk.error.get("message"))
        if any(choice.text for choice in chunk.choices):
            record.text_times.append(time.perf_counter())
        if chunk.usage is not None:
            record.num_prompt_tokens = chunk.usage.prompt_tokens
            num_reported = chunk.usage.completion_tokens
    record.num_output_tokens = len(record.text_times) if num_reported is None else num_reported
    if not is_complete and record.error is None:
        record.error = "the stream ended without [DONE]"


async def _watch_lag(lags: list[float]) -> None:
    with suppress(asyncio.CancelledError):
        while True:
            asked = time.perf_counter() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            lags.append(max(0.0, time.perf_counter() - asked))
