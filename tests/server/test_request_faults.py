"""One request's fault, wherever it happens, ends that request with an error and nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from refectory_kernels.cpu_level import CpuLevel
from refectory_server.config import SchedulerConfig
from refectory_server.core.request import FinishReason
from refectory_server.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from refectory_server.engine.async_engine import AsyncEngine
from refectory_server.engine.engine_core import EngineCore
from refectory_server.engine.in_process_client import InProcessEngineClient
from refectory_server.engine.input_processor import InputProcessor, SamplingDefaults
from refectory_server.engine.messages import AddRequest
from refectory_server.errors import RequestFailed
from refectory_server.runner.interface import ModelRunner, RunnerFacts
from refectory_server.runner.philox import uniforms
from refectory_server.sampling_params import SamplingParams
from refectory_server.testing.simulated_engine import (
    RecordingObserver,
    simulated_engine,
    small_facts,
)
from refectory_server.testing.simulated_profile import expected_text
from refectory_server.testing.stepped_engine import SteppedEngine
from refectory_server.testing.tiny_llama import TinyPair, make_tiny_llama
from refectory_server.tokenizer.byte_tokenizer import ByteTokenizer

Requests = dict[str, tuple[Sequence[int], SamplingParams]]
"""By request id."""

NUM_TOKENS = 40
POISONED_TOKEN = 130
"""Of the tiny model's vocabulary of 131."""


class FailingRunner:
    """A runner that cannot sample for `request_id` once it has given it `num_good` tokens."""

    def __init__(self, runner: ModelRunner, request_id: str, num_good: int) -> None:
        self._runner = runner
        self._request_id = request_id
        self._num_left = num_good

    @property
    def facts(self) -> RunnerFacts:
        return self._runner.facts

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        output = self._runner.execute_model(scheduler_output)
        if self._request_id not in output.sampled_token_ids:
            return output
        self._num_left -= 1
        if self._num_left >= 0:
            return output
        del output.sampled_token_ids[self._request_id]
        return ModelRunnerOutput(output.sampled_token_ids, {self._request_id: "not a number"})


class FaultyTokenizer(ByteTokenizer):
    """Cannot decode one letter."""

    def token_bytes(self, token_id: int) -> bytes:
        if token_id == ord("z"):
            raise LookupError("no letter for 122")
        return super().token_bytes(token_id)


class Reader:
    """Reads one request to its end."""

    def __init__(self) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.error: RequestFailed | None = None

    async def read(
        self, engine: AsyncEngine, request_id: str, prompt: Sequence[int], params: SamplingParams
    ) -> None:
        try:
            async for delta in engine.generate(list(prompt), params, request_id=request_id):
                self.text += delta.text
                self.token_ids += delta.token_ids
        except RequestFailed as error:
            self.error = error


async def read_all(engine: AsyncEngine, requests: Requests) -> dict[str, Reader]:
    """All at once; then nothing runs or waits, and every block is free."""
    readers = {request_id: Reader() for request_id in requests}
    async with asyncio.TaskGroup() as group:
        for request_id, (prompt, params) in requests.items():
            group.create_task(readers[request_id].read(engine, request_id, prompt, params))
    while engine.stats.num_running or engine.stats.num_waiting:  # pytest's time-out is the limit
        await asyncio.sleep(0.005)
    assert engine.stats.num_free_blocks == engine.stats.num_blocks
    assert engine.num_in_flight == 0
    return readers


@pytest.mark.parametrize("num_good", [0, 1, 17])
def test_a_request_that_the_runner_fails_ends_alone(num_good: int) -> None:
    prompts = {f"r{i}": bytes([97 + i]) * (1 + 3 * i) for i in range(12)}

    async def scenario() -> None:
        observer = RecordingObserver()
        # 12 requests of up to 74 tokens in 12 blocks of 16: some are preempted on the way.
        async with simulated_engine(
            facts=small_facts(num_blocks=12),
            observer=observer,
            wrap_runner=lambda runner: FailingRunner(runner, "r5", num_good),
        ) as simulated:
            params = SamplingParams(max_tokens=NUM_TOKENS)
            readers = await read_all(
                simulated.engine, {name: (prompt, params) for name, prompt in prompts.items()}
            )
            assert simulated.engine.stats.num_preemptions > 0
        for request_id, reader in readers.items():
            count = num_good if request_id == "r5" else NUM_TOKENS
            assert reader.text == expected_text(prompts[request_id], count), request_id
        assert str(readers["r5"].error) == "not a number"
        reasons = {request_id: reason for request_id, reason, _ in observer.finished}
        assert reasons.pop("r5") is FinishReason.ERROR
        assert set(reasons.values()) == {FinishReason.LENGTH}

    asyncio.run(scenario())


def test_text_that_cannot_be_made_ends_its_requests_alone() -> None:
    prompts = {f"r{i}": f"prompt {i}".encode() for i in range(12)}
    texts = {request_id: expected_text(p, NUM_TOKENS) for request_id, p in prompts.items()}
    bad = {request_id for request_id, text in texts.items() if "z" in text}

    async def scenario() -> None:
        async with simulated_engine(tokenizer=FaultyTokenizer()) as simulated:
            params = SamplingParams(max_tokens=NUM_TOKENS)
            readers = await read_all(
                simulated.engine, {name: (prompt, params) for name, prompt in prompts.items()}
            )
        assert {request_id for request_id, reader in readers.items() if reader.error} == bad
        for request_id, reader in readers.items():
            if reader.error is None:
                assert reader.text == texts[request_id]
            else:
                assert texts[request_id].partition("z")[0].startswith(reader.text)
                assert str(reader.error).endswith(" failed: LookupError: no letter for 122")

    assert 0 < len(bad) < len(prompts)
    asyncio.run(scenario())


@pytest.fixture(scope="module")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    folder = tmp_path_factory.mktemp("tiny-llama")
    return TinyPair(folder, make_tiny_llama(folder))


async def make_input_processor(facts: RunnerFacts) -> InputProcessor:
    return InputProcessor(
        ByteTokenizer(), None, facts, default_sampling=SamplingDefaults(), max_logprobs=0
    )


async def ask_in_rounds(
    runner: ModelRunner, requests: Requests, num_rounds: int
) -> list[dict[str, Reader]]:
    """The same requests again and again, in blocks that those before have written to."""
    core = EngineCore.build(runner, SchedulerConfig(), enable_prefix_caching=False)
    client = InProcessEngineClient(core, runner.facts)
    engine = AsyncEngine(client, RecordingObserver(), make_input_processor)
    await engine.start()
    await engine.wait_until_settled()
    try:
        return [await read_all(engine, requests) for _ in range(num_rounds)]
    finally:
        await engine.shutdown()


def test_logits_that_are_no_numbers_end_their_request_alone(
    tiny_pair: TinyPair, level: CpuLevel | None, tmp_path: Path
) -> None:
    # 5 blocks of 8 or 16 tokens for 4 requests of 18: they take over the blocks that hold the NaN.
    runner = tiny_pair.with_nan_token(tmp_path, POISONED_TOKEN).load(level, num_blocks=5)
    greedy = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    prompts = {f"r{i}": list(range(1 + 8 * i, 9 + 8 * i)) for i in range(3)}
    requests: Requests = {name: (prompt, greedy) for name, prompt in prompts.items()}
    bad: Requests = {"bad": ([1, 2, POISONED_TOKEN, 3], greedy)}

    rounds = asyncio.run(ask_in_rounds(runner, bad | requests, 3))

    expected = {name: tiny_pair.greedy_ids(prompt, 10) for name, prompt in prompts.items()}
    assert all(POISONED_TOKEN not in ids for ids in expected.values())
    for readers in rounds:
        failed = readers.pop("bad")
        assert failed.token_ids == []
        assert str(failed.error) == "the model's logits after token 4 are NaN or infinite"
        assert {name: reader.token_ids for name, reader in readers.items()} == expected


def test_nobody_finds_a_failed_requests_blocks_in_the_prefix_cache(
    tiny_pair: TinyPair, level: CpuLevel | None, tmp_path: Path
) -> None:
    """Rows before the NaN are healthy tokens, but were attended beside it."""
    engine = SteppedEngine(tiny_pair.with_nan_token(tmp_path, POISONED_TOKEN).load(level))
    stem = list(range(3, 40))
    greedy = SamplingParams(temperature=0, max_tokens=6)

    news = engine.run([AddRequest("bad", [*stem, POISONED_TOKEN], greedy, 0, 0.0)])

    assert [output.finish_reason for output in news["bad"]] == [FinishReason.ERROR]
    prompt = [*stem, 7]
    assert engine.generate([prompt], [6]) == [tiny_pair.greedy_ids(prompt, 6)]


def test_an_exception_of_the_sampler_ends_its_request_alone(
    tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: Requests = {
        f"r{seed}": (
            [1, 2, 3 + seed],
            SamplingParams(temperature=1, seed=seed, max_tokens=10, ignore_eos=True),
        )
        for seed in range(5)
    }
    [healthy] = asyncio.run(ask_in_rounds(tiny_pair.load(), requests, 1))

    def fail_once(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
        if (3, 7) in zip(seeds, positions, strict=True):
            raise ArithmeticError("out of numbers")
        return uniforms(seeds, positions)

    monkeypatch.setattr("refectory_server.runner.sampler.uniforms", fail_once)
    [readers] = asyncio.run(ask_in_rounds(tiny_pair.load(), requests, 1))

    failed = readers.pop("r3")
    assert failed.token_ids == healthy.pop("r3").token_ids[:4]
    assert str(failed.error) == "sampling failed: ArithmeticError: out of numbers"
    assert {name: r.token_ids for name, r in readers.items()} == {
        name: r.token_ids for name, r in healthy.items()
    }
