"""`AsyncEngine` over the real core in this process: text out, aborts, failures, accounting."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from refectory_server.config import SchedulerConfig
from refectory_server.core.request import FinishReason
from refectory_server.engine.async_engine import AsyncEngine, TextDelta
from refectory_server.engine.client import EngineState, EngineStatus
from refectory_server.engine.in_process_client import InProcessEngineClient
from refectory_server.engine.input_processor import InputProcessor
from refectory_server.engine.messages import AddRequest
from refectory_server.errors import (
    DeadlineExceeded,
    EngineDead,
    InvalidRequest,
    PromptTooLong,
    QueueFull,
    RequestFailed,
)
from refectory_server.runner.interface import RunnerFacts
from refectory_server.sampling_params import SamplingParams
from refectory_server.testing.simulated_engine import (
    RecordingObserver,
    simulated_engine,
    small_facts,
)
from refectory_server.testing.simulated_profile import expected_text


def run(coroutine: Any) -> None:
    asyncio.run(asyncio.wait_for(coroutine, timeout=30))


async def collect(
    engine: AsyncEngine, prompt: bytes, params: SamplingParams, request_id: str = "r"
) -> list[TextDelta]:
    return [d async for d in engine.generate(list(prompt), params, request_id=request_id)]


def test_a_request_gets_its_tokens_and_its_counts() -> None:
    async def scenario() -> None:
        observer = RecordingObserver()
        async with simulated_engine(observer=observer) as simulated:
            deltas = await collect(simulated.engine, b"hello", SamplingParams(max_tokens=7))
            assert "".join(d.text for d in deltas) == expected_text(b"hello", 7)
            last = deltas[-1]
            assert last.finish_reason is FinishReason.LENGTH
            assert (last.num_prompt_tokens, last.num_output_tokens) == (5, 7)
            assert all(d.finish_reason is None for d in deltas[:-1])
            assert simulated.engine.num_in_flight == 0
        ((request_id, reason, timings),) = observer.finished
        assert (request_id, reason) == ("r", FinishReason.LENGTH)
        assert (timings.num_prompt_tokens, timings.num_output_tokens) == (5, 7)
        assert (len(observer.ttfts_s), len(observer.itls_s)) == (1, 6)
        assert timings.queue_s is not None
        assert timings.tpot_s is not None
        assert 0 <= timings.queue_s <= timings.ttft_s <= timings.e2e_s  # type: ignore[operator]

    run(scenario())


def test_company_does_not_change_the_tokens() -> None:
    async def scenario() -> None:
        # 12 blocks of 16 tokens for 20 requests of up to 60 tokens: preemptions must happen.
        async with simulated_engine(facts=small_facts(num_blocks=12)) as simulated:
            prompts = [bytes([97 + i]) * (1 + 2 * i) for i in range(20)]
            results = await asyncio.gather(
                *(
                    collect(simulated.engine, prompt, SamplingParams(max_tokens=40), f"r{i}")
                    for i, prompt in enumerate(prompts)
                )
            )
            assert simulated.engine.stats.num_preemptions > 0
            for prompt, deltas in zip(prompts, results, strict=True):
                assert "".join(d.text for d in deltas) == expected_text(prompt, 40)

    run(scenario())


def test_a_second_equal_prompt_is_taken_from_the_prefix_cache() -> None:
    async def scenario() -> None:
        async with simulated_engine() as simulated:
            prompt = bytes(range(97, 97 + 20)) * 2
            first = await collect(simulated.engine, prompt, SamplingParams(max_tokens=3), "a")
            second = await collect(simulated.engine, prompt, SamplingParams(max_tokens=3), "b")
            assert first[-1].num_cached_tokens == 0
            assert second[-1].num_cached_tokens == 32  # two whole blocks of 16

    run(scenario())


def test_a_stop_string_ends_the_request_in_the_engine_too() -> None:
    async def scenario() -> None:
        text = expected_text(b"hello", 40)
        stop = text[10:13]
        cut = text[: text.index(stop)]
        async with simulated_engine() as simulated:
            params = SamplingParams(max_tokens=400, stop=(stop,))
            deltas = await collect(simulated.engine, b"hello", params)
            assert "".join(d.text for d in deltas) == cut
            assert deltas[-1].finish_reason is FinishReason.STOP
            assert deltas[-1].num_output_tokens == len(cut) + len(stop)
            await settle(simulated.engine)
            assert simulated.engine.stats.num_running == 0
            assert simulated.engine.stats.num_free_blocks == simulated.engine.stats.num_blocks

    run(scenario())


async def settle(engine: AsyncEngine) -> None:
    """Wait until the engine has nothing to do any more."""
    while engine.stats.num_running or engine.stats.num_waiting:
        await asyncio.sleep(0.001)


def test_closing_the_generator_aborts_at_once() -> None:
    async def scenario() -> None:
        observer = RecordingObserver()
        async with simulated_engine(observer=observer, step_seconds=lambda _: 0.002) as simulated:
            params = SamplingParams(max_tokens=400)
            deltas = simulated.engine.generate(list(b"hello"), params, request_id="r")
            await anext(deltas)
            await deltas.aclose()
            assert simulated.engine.num_in_flight == 0
            await settle(simulated.engine)
            assert simulated.engine.stats.num_free_blocks == simulated.engine.stats.num_blocks
        assert [(i, reason) for i, reason, _ in observer.finished] == [("r", FinishReason.ABORT)]
        assert len(observer.steps) < 100

    run(scenario())


def test_a_slow_reader_gets_everything_in_one_delta() -> None:
    async def scenario() -> None:
        async with simulated_engine() as simulated:
            deltas = simulated.engine.generate(
                list(b"hello"), SamplingParams(max_tokens=50), request_id="r"
            )
            first = await anext(deltas)
            await settle(simulated.engine)
            rest = [d async for d in deltas]
            assert len(rest) == 1
            assert first.text + rest[0].text == expected_text(b"hello", 50)
            assert rest[0].num_output_tokens == 50

    run(scenario())


def test_input_that_cannot_be_served_never_reaches_the_engine() -> None:
    async def scenario() -> None:
        observer = RecordingObserver()
        async with simulated_engine(observer=observer) as simulated:
            with pytest.raises(InvalidRequest):
                await collect(simulated.engine, b"", SamplingParams())
            with pytest.raises(PromptTooLong, match="600"):
                await collect(simulated.engine, b"x" * 600, SamplingParams())
            assert simulated.engine.num_in_flight == 0
        assert observer.steps == []
        assert observer.finished == []

    run(scenario())


def test_a_full_queue_refuses_with_its_reason_and_disturbs_nobody() -> None:
    async def scenario() -> None:
        observer = RecordingObserver()
        scheduler_config = SchedulerConfig(max_num_seqs=1, max_num_queued_reqs=2)
        async with simulated_engine(
            observer=observer, scheduler_config=scheduler_config, step_seconds=lambda _: 0.002
        ) as simulated:
            params = SamplingParams(max_tokens=20)
            running = asyncio.create_task(collect(simulated.engine, b"first", params, "a"))
            while simulated.engine.stats.num_running == 0:
                await asyncio.sleep(0.001)
            waiting = [
                asyncio.create_task(collect(simulated.engine, prompt, params, prompt.decode()))
                for prompt in (b"second", b"third")
            ]
            while simulated.engine.stats.num_waiting < 2:
                await asyncio.sleep(0.001)
            with pytest.raises(QueueFull) as error:
                await collect(simulated.engine, b"fourth", params, "b")
            # Two rounds of one seat are in front.
            assert (error.value.reason, error.value.retry_after_s) == ("max_num_queued_reqs", 2)
            for task, prompt in zip(
                (running, *waiting), (b"first", b"second", b"third"), strict=True
            ):
                assert "".join(d.text for d in await task) == expected_text(prompt, 20)
        assert observer.rejections == ["max_num_queued_reqs"]
        finished = [request_id for request_id, _, _ in observer.finished]
        assert sorted(finished) == ["a", "second", "third"]

    run(scenario())


def test_a_request_that_waits_past_its_deadline_is_ended() -> None:
    async def scenario() -> None:
        scheduler_config = SchedulerConfig(max_num_seqs=1)
        async with simulated_engine(
            scheduler_config=scheduler_config,
            step_seconds=lambda _: 0.005,
            request_timeout_s=0.05,
        ) as simulated:
            params = SamplingParams(max_tokens=60)
            running = asyncio.create_task(collect(simulated.engine, b"first", params, "a"))
            while simulated.engine.stats.num_running == 0:
                await asyncio.sleep(0.001)
            with pytest.raises(DeadlineExceeded):
                await collect(simulated.engine, b"second", params, "b")
            # The one that runs is past its deadline too, but it has begun.
            assert "".join(d.text for d in await running) == expected_text(b"first", 60)

    run(scenario())


def test_a_failing_runner_ends_every_request_with_an_error() -> None:
    async def scenario() -> None:
        def fail_at_decode(output: Any) -> float:
            if output.cached_requests:
                raise RuntimeError("device lost")
            return 0.0

        observer = RecordingObserver()
        async with simulated_engine(observer=observer, step_seconds=fail_at_decode) as simulated:
            results = await asyncio.gather(
                *(
                    collect(simulated.engine, b"hello", SamplingParams(max_tokens=9), f"r{i}")
                    for i in range(3)
                ),
                return_exceptions=True,
            )
            assert [type(result) for result in results] == [EngineDead] * 3
            assert "device lost" in str(results[0])
            assert simulated.engine.status.state is EngineState.DEAD
            with pytest.raises(EngineDead, match="device lost"):
                await collect(simulated.engine, b"more", SamplingParams(), "late")
            # Its scheduler stopped in the middle of a step; only its blocks need to add up.
        assert observer.statuses[-1].state is EngineState.DEAD

    run(scenario())


def test_a_request_lasts_until_its_last_output_however_late_that_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        observer = RecordingObserver()
        async with simulated_engine(observer=observer) as simulated:
            params = SamplingParams(max_tokens=5)
            deltas = simulated.engine.generate(list(b"hello"), params, request_id="r")
            await anext(deltas)
            await settle(simulated.engine)
            last_step_time = observer.steps[-1].time
            await asyncio.sleep(0.01)
            assert [d.finish_reason async for d in deltas] == [FinishReason.LENGTH]
        ((_, _, timings),) = observer.finished
        assert timings.finish_time == timings.last_token_time == last_step_time

    with caplog.at_level("INFO", "refectory_server.engine.async_engine"):
        run(scenario())
    (line,) = caplog.messages
    assert line.startswith(
        "request r ended (length): 5 prompt tokens, 0 of them cached, 5 output tokens, "
        "0 preemptions, queued "
    )


def test_a_text_side_that_fails_in_an_unforeseen_way_ends_the_start() -> None:
    async def scenario() -> None:
        async with simulated_engine() as simulated:
            client = InProcessEngineClient(simulated.core, simulated.engine.facts)

        async def fail(facts: RunnerFacts) -> InputProcessor:
            raise KeyError("content")

        engine = AsyncEngine(client, RecordingObserver(), fail)
        await engine.start()
        status = await engine.wait_until_settled()
        await engine.shutdown()
        assert (status.state, status.reason) == (EngineState.DEAD, "TextSideFailed")
        assert status.message == "KeyError: 'content'"

    run(scenario())


def test_an_engine_that_dies_while_the_text_side_is_made_stays_dead() -> None:
    async def scenario() -> None:
        async with simulated_engine() as simulated:
            client = InProcessEngineClient(simulated.core, simulated.engine.facts)
            processor = simulated.engine.input_processor
        dead = EngineStatus(EngineState.DEAD, reason="EngineDied", message="killed")
        is_made = asyncio.Event()

        async def make_input_processor(facts: RunnerFacts) -> InputProcessor:
            client._set_status(dead)
            is_made.set()
            return processor

        engine = AsyncEngine(client, RecordingObserver(), make_input_processor)
        await engine.start()
        await is_made.wait()
        await asyncio.sleep(0)
        assert engine.status == dead
        await engine.shutdown()

    run(scenario())


def test_seeds_not_asked_for_follow_from_the_engines() -> None:
    async def scenario(seed: int) -> list[int]:
        async with simulated_engine() as simulated:
            client = InProcessEngineClient(simulated.core, simulated.engine.facts)
            processor = simulated.engine.input_processor
        sent: list[AddRequest] = []
        client.add_request = sent.append  # type: ignore[assignment, method-assign]

        async def make_input_processor(facts: RunnerFacts) -> InputProcessor:
            return processor

        engine = AsyncEngine(client, RecordingObserver(), make_input_processor, seed=seed)
        await engine.start()
        await engine.wait_until_settled()
        for asked in (None, 7, None):
            deltas = engine.generate([1], SamplingParams(seed=asked), request_id="r")
            reading = asyncio.ensure_future(anext(deltas))
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
        await engine.shutdown()
        return [request.seed for request in sent]

    first = asyncio.run(scenario(0))
    assert first[1] == 7
    assert first[0] != first[2]
    assert asyncio.run(scenario(0)) == first
    assert asyncio.run(scenario(1)) != first


def test_nothing_is_taken_after_shutdown() -> None:
    async def scenario() -> None:
        async with simulated_engine() as simulated:
            await simulated.engine.shutdown()
            with pytest.raises(EngineDead, match="shutting down"):
                await collect(simulated.engine, b"late", SamplingParams())

    run(scenario())


def test_a_fault_in_one_requests_text_ends_that_request_only() -> None:
    async def scenario() -> None:
        async with simulated_engine() as simulated:
            params = SamplingParams(max_tokens=5)
            good = asyncio.create_task(collect(simulated.engine, b"good", params, "good"))
            bad = simulated.engine.generate(list(b"bad"), params, request_id="bad")
            first = asyncio.ensure_future(anext(bad))
            await asyncio.sleep(0)
            simulated.engine._streams["bad"]._processor = None  # type: ignore[assignment]
            with pytest.raises(RequestFailed, match="request bad failed"):
                await first
            assert "".join(d.text for d in await good) == expected_text(b"good", 5)
            await settle(simulated.engine)
            assert simulated.engine.stats.num_free_blocks == simulated.engine.stats.num_blocks

    run(scenario())


def test_time_without_progress_counts_only_while_work_is_pending() -> None:
    async def scenario() -> None:
        async with simulated_engine(step_seconds=lambda _: 0.1) as simulated:
            assert simulated.engine.seconds_without_progress() == 0.0
            task = asyncio.create_task(
                collect(simulated.engine, b"hello", SamplingParams(max_tokens=1))
            )
            await asyncio.sleep(0.05)
            assert simulated.engine.seconds_without_progress() > 0.0
            await task
            assert simulated.engine.seconds_without_progress() == 0.0

    run(scenario())


def test_a_request_in_its_first_step_is_running_not_waiting() -> None:
    async def scenario() -> None:
        observer = RecordingObserver()
        async with simulated_engine(observer=observer, step_seconds=lambda _: 0.2) as simulated:
            task = asyncio.create_task(
                collect(simulated.engine, b"hello", SamplingParams(max_tokens=1))
            )
            while not observer.steps:
                await asyncio.sleep(0.001)
            stats = simulated.engine.stats
            assert (stats.num_running, stats.num_waiting) == (1, 0)
            assert not task.done()
            await task
        # Its tokens are counted once, with the step's end.
        assert [step.stats.num_scheduled_tokens for step in observer.steps] == [0, 5]

    run(scenario())
