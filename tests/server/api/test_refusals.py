"""Every exception's status: queue limits, deadlines, failures, unexpected errors."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from starlette.exceptions import HTTPException

from refectory_server.api.body import BodyStalled, BodyTooLarge
from refectory_server.api.error_handlers import ENGINE_DEAD_TEXT, Unauthorized, error_reply
from refectory_server.api.lifecycle import Unavailable
from refectory_server.config import ApiConfig, SchedulerConfig
from refectory_server.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from refectory_server.errors import (
    DeadlineExceeded,
    EngineDead,
    InvalidRequest,
    ModelNotFound,
    PromptTooLong,
    QueueFull,
    RequestFailed,
)
from refectory_server.testing.simulated_app import SimulatedApp, simulated_app

pytestmark = pytest.mark.anyio

BODY = {"prompt": "hi", "max_tokens": 2}
FAILED_TEXT = "the request failed inside the server; its log says more under r1"


@pytest.mark.parametrize(
    ("error", "status", "type_", "code", "param"),
    [
        (InvalidRequest("x", field="f"), 400, "invalid_request_error", None, "f"),
        (
            PromptTooLong("x", field="p"),
            400,
            "invalid_request_error",
            "context_length_exceeded",
            "p",
        ),
        (Unauthorized("x"), 401, "invalid_request_error", "invalid_api_key", None),
        (ModelNotFound("x"), 404, "invalid_request_error", "model_not_found", "model"),
        (BodyStalled("x"), 408, "invalid_request_error", "request_timeout", None),
        (BodyTooLarge("x"), 413, "invalid_request_error", "request_too_large", None),
        (QueueFull("x", reason="r", retry_after_s=7), 429, "rate_limit_error", "queue_full", None),
        (RequestFailed("x"), 500, "server_error", "request_failed", None),
        (DeadlineExceeded("x"), 503, "server_error", "deadline_exceeded", None),
        (EngineDead("x"), 503, "server_error", "engine_dead", None),
        (Unavailable("x", code="c"), 503, "server_error", "c", None),
    ],
)
def test_the_map(
    error: Exception, status: int, type_: str, code: str | None, param: str | None
) -> None:
    reply = error_reply(error, request_id="r1")
    assert reply.status == status
    # How an engine died or a request failed is for the log: it may hold paths and internals.
    message = {EngineDead: ENGINE_DEAD_TEXT, RequestFailed: FAILED_TEXT}.get(type(error), "x")
    assert reply.body.model_dump() == {
        "error": {"message": message, "type": type_, "param": param, "code": code}
    }


def test_what_nobody_foresaw_says_nothing_of_the_inside() -> None:
    for error in (KeyError("secret"), HTTPException(418, "secret")):
        reply = error_reply(error, request_id="r1")
        assert (reply.status, reply.body.error.code) == (500, "internal_error")
        assert reply.body.error.message == FAILED_TEXT


def test_a_message_has_an_end() -> None:
    reply = error_reply(InvalidRequest("x" * 5000), request_id="r1")
    assert reply.body.error.message == "x" * 1000 + "..."


@pytest.mark.parametrize(("stream", "num_good"), [(False, 0), (True, 0), (True, 2)])
async def test_a_failed_request_tells_its_id_and_the_log_the_rest(
    api: SimulatedApp,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    stream: bool,
    num_good: int,
) -> None:
    runner = api.behind.runner
    execute, num_left = runner.execute_model, [num_good]

    def fail_at_last(step: SchedulerOutput) -> ModelRunnerOutput:
        output = execute(step)
        num_left[0] -= 1
        if num_left[0] >= 0:
            return output
        failed = dict.fromkeys(output.sampled_token_ids, "sampling failed: ValueError: secret")
        return ModelRunnerOutput(errors=failed)

    monkeypatch.setattr(runner, "execute_model", fail_at_last)
    answer = await api.client.post(
        "/v1/completions",
        json={**BODY, "stream": stream, "max_tokens": 9},
        headers={"X-Request-Id": "r1"},
    )
    assert answer.status_code == (200 if num_good else 500)
    last = answer.text.strip().rpartition("data: ")[2]
    assert json.loads(last) == {
        "error": {
            "message": FAILED_TEXT,
            "type": "server_error",
            "param": None,
            "code": "request_failed",
        }
    }
    assert "request r1 failed: sampling failed: ValueError: secret" in caplog.text
    assert api.engine.stats.num_running == api.engine.num_in_flight == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_is_429_with_retry_after(stream: bool) -> None:
    limits = SchedulerConfig(max_num_seqs=1, max_num_queued_reqs=1)
    async with simulated_app(scheduler=limits) as api:
        api.gate.close()
        body = {**BODY, "stream": stream}
        asking = [
            asyncio.create_task(api.client.post("/v1/completions", json=body)) for _ in range(8)
        ]
        # A refusal is told at once, while others are held in a step.
        while api.engine.num_in_flight + sum(task.done() for task in asking) < 8:
            await asyncio.sleep(0)
        api.gate.open()
        answers = await asyncio.gather(*asking)
        refused = [answer for answer in answers if answer.status_code != 200]
        assert {answer.status_code for answer in refused} == {429}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        assert refused[0].json()["error"]["code"] == "queue_full"
        assert "max_num_queued_reqs is 1" in refused[0].json()["error"]["message"]
        samples = await api.samples()
        label = frozenset({("reason", "max_num_queued_reqs")})
        for name in ("refectory_requests_rejected_total", "vllm:admission_rejections_total"):
            assert samples[name, label] == len(refused)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_passed_in_the_queue_is_503(stream: bool) -> None:
    async with simulated_app(
        api=ApiConfig(request_timeout=0.001), scheduler=SchedulerConfig(max_num_seqs=1)
    ) as api:
        api.gate.close()
        first = asyncio.create_task(api.client.post("/v1/completions", json=BODY))
        while api.engine.num_in_flight < 1:
            await asyncio.sleep(0)
        second = asyncio.create_task(
            api.client.post("/v1/completions", json={**BODY, "stream": stream})
        )
        while api.engine.num_in_flight < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        api.gate.open()
        answer = await second
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "deadline_exceeded"
        await first


async def test_an_unexpected_error_is_a_500_with_the_request_id_and_a_traceback(
    api: SimulatedApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def explode() -> float:
        raise ZeroDivisionError("broken inside")

    monkeypatch.setattr(api.engine, "seconds_without_progress", explode)
    answer = await api.client.get("/health", headers={"X-Request-Id": "mine"})
    assert answer.status_code == 500
    assert answer.headers["x-request-id"] == "mine"
    assert answer.json()["error"]["code"] == "internal_error"
    assert "broken inside" not in answer.text
    assert "broken inside" in caplog.text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/detokenize"])
async def test_a_body_over_16_mib_is_413(client: httpx.AsyncClient, path: str) -> None:
    body = b" " * (16 * 1024 * 1024)
    assert (await client.post(path, content=body)).status_code == 400
    answer = await client.post(path, content=body + b" ")
    assert answer.status_code == 413
    assert answer.json()["error"] == {
        "message": "the body is larger than the 16777216 bytes allowed",
        "type": "invalid_request_error",
        "param": None,
        "code": "request_too_large",
    }
