"""The whole HTTP side over a simulated engine, called in process or on a real port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from refectory_server.api.app import create_app
from refectory_server.api.lifecycle import Lifecycle
from refectory_server.api.server import HttpServer
from refectory_server.api.sse import StreamTimes
from refectory_server.config import ApiConfig, ModelConfig, SchedulerConfig, ServerConfig
from refectory_server.engine.async_engine import AsyncEngine
from refectory_server.metrics import ServerMetrics
from refectory_server.runner.interface import RunnerFacts
from refectory_server.testing.simulated_engine import (
    FACTS,
    SimulatedEngine,
    simulated_engine,
)
from refectory_server.testing.step_gate import StepGate

MODEL_NAMES = ("sim", "sim-alias")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedApp:
    app: FastAPI
    behind: SimulatedEngine
    config: ServerConfig
    lifecycle: Lifecycle
    metrics: ServerMetrics
    gate: StepGate
    client: httpx.AsyncClient
    """Calls the app in process."""

    @property
    def engine(self) -> AsyncEngine:
        return self.behind.engine

    async def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """`/metrics`: (name, labels without the common two) -> value."""
        text = (await self.client.get("/metrics")).text
        return {
            (sample.name, frozenset(sample.labels.items() - _common(sample.labels).items())): (
                sample.value
            )
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


def _common(labels: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name in ("model_name", "engine")}


@asynccontextmanager
async def simulated_app(
    *,
    api: ApiConfig | None = None,
    scheduler: SchedulerConfig | None = None,
    facts: RunnerFacts = FACTS,
    lifecycle: Lifecycle | None = None,
    times: StreamTimes | None = None,
    gate: StepGate | None = None,
) -> AsyncIterator[SimulatedApp]:
    """A ready app; its engine is shut down at the end, with the gate opened before."""
    config = ServerConfig(
        model=ModelConfig(served_model_name=MODEL_NAMES),
        scheduler=scheduler or SchedulerConfig(),
        api=api or ApiConfig(host="127.0.0.1", port=0),
    )
    gate = gate or StepGate()
    metrics = ServerMetrics(CollectorRegistry(), MODEL_NAMES[0])
    lifecycle = lifecycle or Lifecycle(config.api.shutdown_timeout)
    async with simulated_engine(
        facts=facts,
        scheduler_config=config.scheduler,
        step_seconds=gate,
        observer=metrics,
        request_timeout_s=config.api.request_timeout,
    ) as behind:
        app = create_app(behind.engine, config, metrics, lifecycle, times=times)
        async with client_of(app) as client:
            try:
                yield SimulatedApp(
                    app=app,
                    behind=behind,
                    config=config,
                    lifecycle=lifecycle,
                    metrics=metrics,
                    gate=gate,
                    client=client,
                )
            finally:
                gate.open()


def client_of(app: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    return httpx.AsyncClient(transport=transport, base_url="http://app", timeout=30)


@dataclass(frozen=True, slots=True)
class RunningServer:
    server: HttpServer
    exit_code: asyncio.Task[int]
    """Done when the server has ended."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"


@asynccontextmanager
async def running_server(simulated: SimulatedApp) -> AsyncIterator[RunningServer]:
    """The app on a real port of 127.0.0.1, ended at the latest with the context."""
    server = HttpServer(simulated.app, simulated.config.api, simulated.lifecycle)
    server.bind()
    exit_code = asyncio.create_task(server.serve(handle_signals=False))
    try:
        yield RunningServer(server, exit_code)
    finally:
        simulated.gate.open()
        server.stop(0)
        await exit_code
