"""Health, readiness, load, tokens, keys, and errors that have no route."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from refectory_server import __version__
from refectory_server.api.app import create_app
from refectory_server.api.auth import load_api_keys
from refectory_server.api.lifecycle import Lifecycle
from refectory_server.api.service import served_model_names
from refectory_server.config import ApiConfig, ModelConfig, ServerConfig
from refectory_server.core.scheduler_output import SchedulerOutput
from refectory_server.engine.async_engine import AsyncEngine
from refectory_server.engine.input_processor import InputProcessor
from refectory_server.errors import StartupError
from refectory_server.metrics import ServerMetrics
from refectory_server.runner.interface import RunnerFacts
from refectory_server.testing.simulated_app import SimulatedApp, client_of, simulated_app
from refectory_server.testing.simulated_engine import simulated_engine

pytestmark = pytest.mark.anyio

BODY = {"prompt": "hi", "max_tokens": 2}


async def test_a_ready_server(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health")).status_code == 200
    assert (await client.head("/health")).status_code == 200
    ready = await client.get("/ready")
    assert (ready.status_code, ready.json()) == (200, {"phase": "ready"})
    assert (await client.get("/version")).json() == {"version": __version__}


async def test_a_loading_server_is_alive_and_not_ready() -> None:
    class NeverReady:
        """An engine client whose engine goes on loading."""

        async def start(self, on_step: object, on_status: object) -> None:
            pass

    async def make_input_processor(facts: RunnerFacts) -> InputProcessor:
        raise AssertionError("the engine never becomes ready")

    metrics = ServerMetrics(CollectorRegistry(), "sim")
    engine = AsyncEngine(NeverReady(), metrics, make_input_processor)  # type: ignore[arg-type]
    await engine.start()
    app = create_app(engine, ServerConfig(), metrics, Lifecycle(60))
    async with client_of(app) as client:
        assert (await client.get("/health")).status_code == 200
        ready = await client.get("/ready")
        assert ready.status_code == 503
        assert ready.json() == {"phase": "starting", "progress": 0.0}
        models = (await client.get("/v1/models")).json()["data"]
        assert [(card["id"], card["max_model_len"]) for card in models] == [("smollm2-135m", None)]
        assert (await client.get("/metrics")).status_code == 200
        for path, body in (("/v1/completions", BODY), ("/tokenize", {"prompt": "x"})):
            answer = await client.post(path, json=body)
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "5"
            assert answer.json()["error"] == {
                "message": "the model is loading: starting, 0%",
                "type": "server_error",
                "param": None,
                "code": "loading",
            }


async def test_a_dead_engine_fails_requests_and_probes() -> None:
    def explode(_: SchedulerOutput) -> float:
        raise MemoryError("no room")

    metrics = ServerMetrics(CollectorRegistry(), "sim")
    async with simulated_engine(step_seconds=explode, observer=metrics) as behind:
        app = create_app(behind.engine, ServerConfig(), metrics, Lifecycle(60))
        async with client_of(app) as client:
            for stream in (False, True, False):
                answer = await client.post("/v1/completions", json={**BODY, "stream": stream})
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "engine_dead"
                assert "no room" not in answer.text
            assert (await client.get("/health")).status_code == 503
            ready = await client.get("/ready")
            assert ready.status_code == 503
            assert ready.json() == {"phase": "dead", "message": "MemoryError: no room"}


async def test_health_fails_when_pending_work_makes_no_progress() -> None:
    async with simulated_app(api=ApiConfig(watchdog_timeout=1.0)) as api:
        api.gate.close()
        asking = asyncio.create_task(api.client.post("/v1/completions", json=BODY))
        while (await api.client.get("/health")).status_code == 200:
            await asyncio.sleep(0.05)
        age = ("refectory_watchdog_age_seconds", frozenset[tuple[str, str]]())
        assert (await api.samples())[age] > 1.0
        api.gate.open()
        assert (await asking).status_code == 200
        assert (await api.client.get("/health")).status_code == 200


async def test_load_counts_requests_the_engine_has_not_seen(api: SimulatedApp) -> None:
    idle = (await api.client.get("/load")).json()
    assert idle == {
        "in_flight": 0,
        "waiting": 0,
        "running": 0,
        "kv_cache_usage": 0.0,
        "draining": False,
        "max_num_seqs": 128,
    }
    api.gate.close()
    asking = [asyncio.create_task(api.client.post("/v1/completions", json=BODY)) for _ in range(3)]
    while api.engine.num_in_flight < 3 or not api.engine.stats.num_running:
        await asyncio.sleep(0)
    load = (await api.client.get("/load")).json()
    assert load["in_flight"] == load["waiting"] + load["running"] == 3
    assert load["running"] >= 1
    api.gate.open()
    assert [answer.status_code for answer in await asyncio.gather(*asking)] == [200] * 3
    assert (await api.client.get("/load")).json() == idle


async def test_tokens_there_and_back(client: httpx.AsyncClient) -> None:
    answer = await client.post("/tokenize", json={"model": "sim", "prompt": "hé"})
    assert answer.json() == {
        "tokens": [104, 195, 169],
        "count": 3,
        "max_model_len": 512,
        "token_strs": None,
    }
    answer = await client.post("/detokenize", json={"tokens": [104, 195, 169]})
    assert answer.json() == {"prompt": "hé"}
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": []})):
        assert (await client.post(path, json={"model": "sim-alias", **body})).status_code == 200
        assert (await client.post(path, json={"model": "other", **body})).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "message"),
    [
        ("GET", "/nowhere", 404, "not_found", "GET '/nowhere' is no route of this server"),
        ("GET", "/v1/models/", 404, "model_not_found", None),
        ("GET", "/docs", 404, "not_found", None),
        (
            "GET",
            "/v1/completions",
            405,
            "method_not_allowed",
            "GET is not allowed here; allowed is POST",
        ),
        ("DELETE", "/health", 405, "method_not_allowed", None),
    ],
)
async def test_no_such_route(
    client: httpx.AsyncClient, method: str, path: str, status: int, code: str, message: str | None
) -> None:
    answer = await client.request(method, path)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert message is None or error["message"] == message
    assert answer.headers["x-request-id"]


async def test_keys_guard_everything_but_probes_and_metrics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    async with simulated_app(api=ApiConfig(api_key=("key-a", "kéy-b"))) as api:
        for path in ("/health", "/ready", "/metrics"):
            assert (await api.client.get(path)).status_code == 200
        wrong = ("", "Bearer", "Bearer ", "Bearer key", "Bearer key-a2", "Basic key-a", "key-a")
        for path in ("/v1/models", "/load", "/version", "/nowhere"):
            for header in wrong:
                answer = await api.client.get(path, headers={"Authorization": header})
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json()["error"]["code"] == "invalid_api_key"
        assert (await api.client.post("/v1/completions", json=BODY)).status_code == 401
        for right in (b"Bearer key-a", "Bearer kéy-b".encode(), b"bearer  key-a"):
            answer = await api.client.get("/v1/models", headers=[(b"Authorization", right)])
            assert answer.status_code == 200
    assert "key-a" not in caplog.text
    assert "key-a" not in repr(answer.content)


def test_keys_come_from_flag_and_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n  two \n")
    config = ApiConfig(api_key=("zero",), api_key_file=str(file))
    assert load_api_keys(config) == ("zero", "one", "two")
    assert load_api_keys(ApiConfig()) == ()


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe"])
def test_a_key_file_without_keys_does_not_open_the_server(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StartupError, match="--api-key-file") as error:
        load_api_keys(ApiConfig(api_key_file=str(file)))
    assert error.value.reason == "BadApiKeyFile"


@pytest.mark.parametrize(
    ("model", "served", "names"),
    [
        ("embedded://smollm2-135m", (), ("smollm2-135m",)),
        ("/models/llama-3", (), ("llama-3",)),
        ("./models/tiny.gguf", (), ("tiny.gguf",)),
        ("org/name", (), ("org/name",)),
        ("/models/llama-3", ("a", "b"), ("a", "b")),
    ],
)
def test_served_names_are_no_paths(
    model: str, served: tuple[str, ...], names: tuple[str, ...]
) -> None:
    assert served_model_names(ModelConfig(model=model, served_model_name=served)) == names
