"""Several choices and prompts as one request: numbering, seeds, one refusal, one end for all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from refectory_server.config import SchedulerConfig
from refectory_server.core.request import FinishReason
from refectory_server.engine.async_engine import AsyncEngine, TextDelta
from refectory_server.errors import (
    DeadlineExceeded,
    EngineDead,
    InvalidRequest,
    QueueFull,
    RequestFailed,
)
from refectory_server.sampling_params import SamplingParams
from refectory_server.testing.simulated_engine import (
    RecordingObserver,
    SimulatedEngine,
    simulated_engine,
)
from refectory_server.testing.simulated_profile import expected_text

Batch = list[tuple[bytes, SamplingParams]]


def run(coroutine: Any) -> None:
    asyncio.run(asyncio.wait_for(coroutine, timeout=30))


async def read(
    engine: AsyncEngine, batch: Batch, request_id: str = "r", **options: Any
) -> dict[int, list[TextDelta]]:
    """All deltas by the index of their choice."""
    prompts = [(list(prompt), params) for prompt, params in batch]
    found: dict[int, list[TextDelta]] = {}
    async for deltas in engine.generate_all(prompts, request_id=request_id, **options):
        assert len({delta.index for delta in deltas}) == len(deltas) > 0
        for delta in deltas:
            found.setdefault(delta.index, []).append(delta)
    return found


def texts(found: dict[int, list[TextDelta]]) -> list[str]:
    return ["".join(delta.text for delta in found[index]) for index in sorted(found)]


async def settle(simulated: SimulatedEngine) -> None:
    """Wait until the engine is idle; nothing is left in it then."""
    while simulated.core.has_work or simulated.engine.num_in_flight:
        await asyncio.sleep(0.001)
    stats = simulated.engine.stats
    assert stats.num_free_blocks == stats.num_blocks
    assert stats.num_running == stats.num_waiting == 0


def test_choice_i_is_the_one_request_run_with_seed_plus_i() -> None:
    async def scenario() -> None:
        observer = RecordingObserver()
        async with simulated_engine(observer=observer) as simulated:
            params = SamplingParams(n=4, max_tokens=9, seed=2**63 - 2)
            found = await read(simulated.engine, [(b"a prompt of 2 blocks and more", params)])
            assert texts(found) == [
                expected_text(b"a prompt of 2 blocks and more", 9, seed=2**63 - 2 + i)
                for i in range(4)
            ]
            assert len(set(texts(found))) == 4
            for deltas in found.values():
                assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
                assert deltas[-1].finish_reason is FinishReason.LENGTH
                assert (deltas[-1].num_prompt_tokens, deltas[-1].num_output_tokens) == (29, 9)
            await settle(simulated)
            # The prompt was computed once: each other choice computes its last token.
            num_scheduled = sum(step.stats.num_scheduled_tokens for step in observer.steps)
            assert num_scheduled == 29 + 3 + 4 * 8
        assert [request_id for request_id, _, _ in observer.finished] == ["r", "r-1", "r-2", "r-3"]
        assert observer.num_choices == [4]

    run(scenario())


def test_choices_without_a_seed_differ() -> None:
    async def scenario() -> None:
        async with simulated_engine() as simulated:
            found = await read(simulated.engine, [(b"hello", SamplingParams(n=3, max_tokens=8))])
            assert texts(found) == [expected_text(b"hello", 8, seed=i) for i in range(3)]

    run(scenario())


def test_prompts_are_numbered_one_after_the_other() -> None:
    async def scenario() -> None:
        observer = RecordingObserver()
        async with simulated_engine(observer=observer) as simulated:
            batch = [
                (b"first", SamplingParams(n=2, max_tokens=3, seed=5)),
                (b"second", SamplingParams(n=2, max_tokens=7, seed=5)),
                (b"first", SamplingParams(n=1, max_tokens=1, seed=5)),
            ]
            found = await read(simulated.engine, batch)
            assert texts(found) == [
                expected_text(b"first", 3, seed=5),
                expected_text(b"first", 3, seed=6),
                expected_text(b"second", 7, seed=5),
                expected_text(b"second", 7, seed=6),
                expected_text(b"first", 1, seed=5),
            ]
            await settle(simulated)
        assert observer.num_choices == [2, 2, 1]

    run(scenario())


@pytest.mark.parametrize(
    "batch",
    [
        [(b"second", SamplingParams(n=3, max_tokens=3))],
        [(b"second", SamplingParams(max_tokens=3)), (b"third", SamplingParams(n=2))],
    ],
    ids=["choices", "prompts"],
)
def test_a_queue_too_full_for_the_last_one_refuses_all(batch: Batch) -> None:
    async def scenario() -> None:
        observer = RecordingObserver()
        config = SchedulerConfig(max_num_seqs=1, max_num_queued_reqs=2)
        async with simulated_engine(
            observer=observer, scheduler_config=config, step_seconds=lambda _: 0.002
        ) as simulated:
            first: Batch = [(b"first", SamplingParams(max_tokens=30))]
            running = asyncio.create_task(read(simulated.engine, first, "a"))
            while simulated.engine.stats.num_running == 0:
                await asyncio.sleep(0.001)
            with pytest.raises(QueueFull, match="2 requests wait, max_num_queued_reqs is 2"):
                await read(simulated.engine, batch, "b")
            assert simulated.engine.num_in_flight == 1
            assert texts(await running) == [expected_text(b"first", 30)]
            await settle(simulated)
        assert observer.rejections == ["max_num_queued_reqs"]
        assert [request_id for request_id, _, _ in observer.finished] == ["a"]

    run(scenario())


def test_the_prompts_tokens_count_once_against_the_queues_limit() -> None:
    async def scenario() -> None:
        config = SchedulerConfig(max_num_queued_tokens=30)
        async with simulated_engine(scheduler_config=config) as simulated:
            found = await read(simulated.engine, [(b"x" * 29, SamplingParams(n=5, max_tokens=2))])
            assert len(found) == 5

    run(scenario())


def test_going_away_aborts_every_choice() -> None:
    async def scenario() -> None:
        observer = RecordingObserver()
        async with simulated_engine(observer=observer, step_seconds=lambda _: 0.002) as simulated:
            params = SamplingParams(n=3, max_tokens=400)
            batches = simulated.engine.generate_all(
                [(list(b"hello"), params), (list(b"bye"), params)], request_id="r"
            )
            await anext(batches)
            await batches.aclose()
            assert simulated.engine.num_in_flight == 0
            await settle(simulated)
        assert [reason for _, reason, _ in observer.finished] == [FinishReason.ABORT] * 6
        assert len(observer.steps) < 100

    run(scenario())


def test_each_choice_ends_where_it_ends() -> None:
    async def scenario() -> None:
        async with simulated_engine() as simulated:
            wanted = [expected_text(b"hello", 40, seed=i) for i in range(3)]
            stop = wanted[1][5:8]
            params = SamplingParams(n=3, max_tokens=40, stop=(stop,))
            found = await read(simulated.engine, [(b"hello", params)])
            assert texts(found) == [wanted[0], wanted[1][: wanted[1].index(stop)], wanted[2]]
            reasons = [found[index][-1].finish_reason for index in range(3)]
            assert reasons == [FinishReason.LENGTH, FinishReason.STOP, FinishReason.LENGTH]
            await settle(simulated)

    run(scenario())


def test_a_fault_in_one_choices_text_ends_its_request_and_no_other() -> None:
    async def scenario() -> None:
        async with simulated_engine(step_seconds=lambda _: 0.001) as simulated:
            params = SamplingParams(max_tokens=20)
            good = asyncio.create_task(read(simulated.engine, [(b"good", params)], "good"))
            batches = simulated.engine.generate_all(
                [(list(b"bad"), SamplingParams(n=3, max_tokens=20))], request_id="bad"
            )
            await anext(batches)
            simulated.engine._streams["bad-1"]._processor = None  # type: ignore[assignment]
            with pytest.raises(RequestFailed, match="request bad-1 failed: AttributeError"):
                async for _ in batches:
                    pass
            assert texts(await good) == [expected_text(b"good", 20)]
            await settle(simulated)

    run(scenario())


def test_a_choice_that_waited_too_long_ends_them_all() -> None:
    async def scenario() -> None:
        observer = RecordingObserver()
        async with simulated_engine(
            observer=observer,
            scheduler_config=SchedulerConfig(max_num_seqs=1),
            step_seconds=lambda _: 0.005,
            request_timeout_s=0.05,
        ) as simulated:
            with pytest.raises(DeadlineExceeded):
                await read(simulated.engine, [(b"hi", SamplingParams(n=2, max_tokens=400))])
            await settle(simulated)
        assert [reason for _, reason, _ in observer.finished] == [
            FinishReason.ABORT,
            FinishReason.DEADLINE,
        ]

    run(scenario())


def test_one_bad_prompt_keeps_all_from_the_engine() -> None:
    async def scenario() -> None:
        observer = RecordingObserver()
        async with simulated_engine(observer=observer) as simulated:
            with pytest.raises(InvalidRequest, match="prompt is empty"):
                await read(simulated.engine, [(b"a", SamplingParams()), (b"", SamplingParams())])
        assert observer.steps == []

    run(scenario())


def test_the_engines_death_is_told_once() -> None:
    async def scenario() -> None:
        def fail_at_decode(output: Any) -> float:
            if output.cached_requests:
                raise RuntimeError("device lost")
            return 0.0

        async with simulated_engine(step_seconds=fail_at_decode) as simulated:
            with pytest.raises(EngineDead, match="device lost"):
                await read(simulated.engine, [(b"hello", SamplingParams(n=3, max_tokens=9))])
            assert simulated.engine.num_in_flight == 0

    run(scenario())
