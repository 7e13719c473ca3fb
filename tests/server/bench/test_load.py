"""`run_load` against a simulated server on a real port."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from refectory_server.bench.load import LoadResult, completions_url, run_load
from refectory_server.bench.workload import PlannedRequest
from refectory_server.config import ApiConfig
from refectory_server.testing.simulated_app import SimulatedApp, running_server, simulated_app

PLAN = [PlannedRequest([5 + i] * (3 + i), max_tokens=4 + i) for i in range(6)]


def with_server(
    use: Callable[[SimulatedApp, str], Awaitable[LoadResult]], api: ApiConfig | None = None
) -> LoadResult:
    async def scenario() -> LoadResult:
        async with simulated_app(api=api) as app, running_server(app) as at:
            return await use(app, at.url)

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    "base_url", ["http://h:1/p", "http://h:1/p/", "http://h:1/p/v1", "http://h:1/p/v1/"]
)
def test_a_servers_url_is_taken_with_and_without_v1(base_url: str) -> None:
    assert completions_url(base_url) == "http://h:1/p/v1/completions"


@pytest.mark.parametrize(
    "base_url",
    ["", "h:1", "ftp://h", "http://", "http://h:x", "http://h:0", "http://[", "http://h?q"],
)
def test_what_is_no_servers_url_is_refused(base_url: str) -> None:
    with pytest.raises(ValueError, match=r"base_url is .*; allowed is http"):
        completions_url(base_url)


def test_tokens_are_counted_as_the_server_counts_them() -> None:
    result = with_server(lambda _app, url: run_load(url, PLAN, model="sim"))
    assert [record.error for record in result.records] == [None] * 6
    assert [record.num_prompt_tokens for record in result.records] == [3, 4, 5, 6, 7, 8]
    assert [record.num_output_tokens for record in result.records] == [4, 5, 6, 7, 8, 9]
    for record in result.records:
        times = [record.sent_at, *record.text_times, record.ended_at]
        assert times == sorted(times)
        assert 1 <= len(record.text_times) <= record.num_output_tokens


def test_no_more_than_max_concurrency_are_in_flight() -> None:
    async def use(app: SimulatedApp, url: str) -> LoadResult:
        async def in_flight() -> int:
            return int((await app.client.get("/load")).json()["in_flight"])

        app.gate.close()
        load = asyncio.create_task(run_load(url, PLAN, max_concurrency=2))
        while await in_flight() < 2:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert await in_flight() == 2
        app.gate.open()
        return await load

    result = with_server(use)
    assert [record.num_output_tokens for record in result.records] == [4, 5, 6, 7, 8, 9]


def test_a_request_is_not_sent_before_its_time() -> None:
    plan = [PlannedRequest("a", 1, send_at_s=0.2), PlannedRequest("b", 1)]
    result = with_server(lambda _app, url: run_load(url, plan))
    late, first = result.records
    assert late.sent_at - first.sent_at > 0.15
    assert result.duration_s >= 0.2


def test_a_refusal_is_one_records_error() -> None:
    plan = [PlannedRequest([1] * 600, 1), PlannedRequest([1], 2)]
    result = with_server(lambda _app, url: run_load(url, plan))
    refused, served = result.records
    assert refused.error is not None
    assert refused.error.startswith('400: {"error":{"message":"prompt has 600 tokens')
    assert (served.error, served.num_output_tokens) == (None, 2)


def test_nobody_listening_is_an_error_too() -> None:
    result = asyncio.run(run_load("http://127.0.0.1:1", [PlannedRequest("a", 1)]))
    (record,) = result.records
    assert record.error is not None
    assert record.error.startswith("ClientConnectorError: Cannot connect to host 127.0.0.1:1")


def test_the_key_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    api = ApiConfig(host="127.0.0.1", port=0, api_key=("sesame",))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    refused = with_server(lambda _app, url: run_load(url, PLAN[:1]), api)
    assert str(refused.records[0].error).startswith("401: ")
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    served = with_server(lambda _app, url: run_load(url, PLAN[:1]), api)
    assert served.records[0].error is None
