"""`ProcessEngineClient` with a real engine process behind it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from refectory_server.config import CacheConfig, CpuConfig, ModelConfig, ServerConfig
from refectory_server.core.request import FinishReason
from refectory_server.engine.client import EngineState, EngineStatus
from refectory_server.engine.messages import AddRequest, StepOutputs
from refectory_server.engine.process_client import ProcessEngineClient
from refectory_server.errors import StartupError
from refectory_server.sampling_params import SamplingParams
from refectory_server.testing.process_usage import cpu_seconds
from refectory_server.testing.tiny_llama import make_tiny_llama

NUM_TOKENS = 100


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ServerConfig:
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny_llama(folder)
    return ServerConfig(
        model=ModelConfig(model=str(folder)), cache=CacheConfig(num_gpu_blocks_override=16)
    )


@asynccontextmanager
async def started(
    config: ServerConfig,
    on_step: Callable[[StepOutputs], None],
    on_status: Callable[[EngineStatus], None] = lambda _: None,
) -> AsyncIterator[ProcessEngineClient]:
    client = ProcessEngineClient(config)
    try:
        await client.start(on_step, on_status)
        async with asyncio.timeout(60):
            while client.status.state is EngineState.LOADING:
                await asyncio.sleep(0.01)
        assert client.status.state is EngineState.READY, client.status
        yield client
    finally:
        await client.shutdown()


def request(request_id: str) -> AddRequest:
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    return AddRequest(request_id, [1, 2, 3], params, seed=0, arrival_time=time.monotonic())


def test_a_folder_that_can_hold_no_socket_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("d" * 120)  # longer than a socket's address may be
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)  # it is remembered otherwise

    async def scenario() -> None:
        client = ProcessEngineClient(ServerConfig())
        with pytest.raises(StartupError, match=f"TMPDIR .{folder}., which must be a") as caught:
            await client.start(lambda _: None, lambda _: None)
        assert caught.value.reason == "TemporaryFolderUnusable"
        await client.shutdown()

    asyncio.run(scenario())
    assert list(folder.iterdir()) == []


def test_sending_loses_no_signal_of_a_message_that_has_just_come(config: ServerConfig) -> None:
    async def scenario() -> None:
        num_tokens = 0
        finished: list[FinishReason] = []

        def on_step(step: StepOutputs) -> None:
            nonlocal num_tokens
            for output in step.outputs:
                num_tokens += len(output.new_token_ids)
                if output.finish_reason is not None:
                    finished.append(output.finish_reason)

        async with started(config, on_step) as client:
            client.add_request(request("r"))
            async with asyncio.timeout(60):
                while not finished:
                    # A busy handler: steps arrive while nobody looks, and then it sends.
                    time.sleep(0.01)
                    client.abort(["nobody"])
                    await asyncio.sleep(0.001)
        assert num_tokens == NUM_TOKENS
        assert finished == [FinishReason.LENGTH]

    asyncio.run(scenario())


def test_an_engine_without_work_takes_no_cpu_and_has_no_threads_but_its_own(
    config: ServerConfig,
) -> None:
    num_threads = len(os.sched_getaffinity(0))

    async def scenario() -> None:
        is_finished = asyncio.Event()

        def on_step(step: StepOutputs) -> None:
            if any(output.finish_reason is not None for output in step.outputs):
                is_finished.set()

        cpu = CpuConfig(cpu_threads=num_threads)
        async with started(dataclasses.replace(config, cpu=cpu), on_step) as client:
            assert f"{num_threads} thread" in client.facts.description
            client.add_request(request("r"))
            async with asyncio.timeout(60):
                await is_finished.wait()
            await asyncio.sleep(0.2)
            before = cpu_seconds(client.pid)
            await asyncio.sleep(2)
            # A thread that spins takes 2 s; two that wake up 1,000 times a second, 0.02 s.
            assert cpu_seconds(client.pid) - before < 0.01
            # The first one computes; two are ZMQ's.
            assert len(os.listdir(f"/proc/{client.pid}/task")) <= num_threads + 2

    asyncio.run(scenario())


def test_a_listener_that_fails_ends_the_engine_instead_of_hanging(config: ServerConfig) -> None:
    async def scenario() -> None:
        statuses: list[EngineStatus] = []

        def fail(step: StepOutputs) -> None:
            raise LookupError("no such series")

        async with started(config, fail, statuses.append) as client:
            client.add_request(request("r"))
            async with asyncio.timeout(60):
                while client.status.state is EngineState.READY:
                    await asyncio.sleep(0.01)
        dead = EngineStatus(
            EngineState.DEAD, reason="EngineFailed", message="LookupError: no such series"
        )
        assert [status for status in statuses if status.state is EngineState.DEAD] == [dead]

    asyncio.run(scenario())
