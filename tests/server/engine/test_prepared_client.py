"""An engine that starts after a preparation: what is told meanwhile, and every way it can end."""

from __future__ import annotations

import asyncio

import pytest

from refectory_server.config import SchedulerConfig
from refectory_server.engine.client import EngineClient, EngineState, EngineStatus
from refectory_server.engine.engine_core import EngineCore
from refectory_server.engine.in_process_client import InProcessEngineClient
from refectory_server.engine.prepared_client import PreparedEngineClient
from refectory_server.errors import StartupError
from refectory_server.runner.interface import ReportProgress
from refectory_server.runner.simulated_model_runner import SimulatedModelRunner
from refectory_server.testing.simulated_engine import ALPHABET, FACTS

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def make_client() -> EngineClient:
    runner = SimulatedModelRunner(FACTS, ALPHABET)
    core = EngineCore.build(runner, SchedulerConfig(), enable_prefix_caching=True)
    return InProcessEngineClient(core, FACTS)


async def start(client: PreparedEngineClient) -> list[EngineStatus]:
    """Until the engine is ready or dead; every status on the way."""
    statuses: list[EngineStatus] = []
    is_settled = asyncio.Event()

    def on_status(status: EngineStatus) -> None:
        statuses.append(status)
        if status.state is not EngineState.LOADING:
            is_settled.set()

    await client.start(lambda step: None, on_status)
    await is_settled.wait()
    return statuses


async def test_the_preparation_is_a_phase_like_any_other() -> None:
    ticks = iter([10.0, 12.5])

    async def prepare(report: ReportProgress) -> EngineClient:
        report("download", 0.0)
        await asyncio.sleep(0)
        report("download", 0.5)
        return make_client()

    client = PreparedEngineClient(prepare, clock=lambda: next(ticks))
    with pytest.raises(RuntimeError, match="not started"):
        _ = client.facts
    statuses = await start(client)
    assert [(s.state, s.phase, s.progress) for s in statuses[:2]] == [
        (EngineState.LOADING, "download", 0.0),
        (EngineState.LOADING, "download", 0.5),
    ]
    assert statuses[-1].state is EngineState.READY
    assert statuses[-1].startup_seconds == {"download": 2.5}
    assert client.status is statuses[-1]
    assert client.facts == FACTS
    await client.shutdown()
    await client.shutdown()


@pytest.mark.parametrize(
    ("error", "reason", "message"),
    [
        (StartupError("no such model", reason="ModelMissing"), "ModelMissing", "no such model"),
        (KeyError("oops"), "EngineFailed", "KeyError: 'oops'"),
    ],
)
async def test_a_preparation_that_fails_is_a_dead_engine(
    error: Exception, reason: str, message: str
) -> None:
    async def prepare(report: ReportProgress) -> EngineClient:
        raise error

    client = PreparedEngineClient(prepare)
    [status] = await start(client)
    assert (status.state, status.reason, status.message) == (EngineState.DEAD, reason, message)
    await client.shutdown()


async def test_a_shutdown_ends_the_preparation() -> None:
    was_cancelled = asyncio.Event()

    async def prepare(report: ReportProgress) -> EngineClient:
        report("download", 0.0)
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.set()
        return make_client()

    client = PreparedEngineClient(prepare)
    is_preparing = asyncio.Event()
    await client.start(lambda step: None, lambda status: is_preparing.set())
    await is_preparing.wait()
    await client.shutdown()
    assert was_cancelled.is_set()
    assert client.status.state is EngineState.LOADING
