"""A whole `AsyncEngine` in this process over the simulated runner, for tests above the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from refectory_server.config import ModelConfig, SchedulerConfig
from refectory_server.core.kv_cache_manager import usable_tokens
from refectory_server.core.request import FinishReason
from refectory_server.core.scheduler_output import SchedulerOutput
from refectory_server.core.stats import RequestTimings
from refectory_server.engine.async_engine import AsyncEngine, EngineObserver
from refectory_server.engine.client import EngineState, EngineStatus
from refectory_server.engine.engine_core import EngineCore
from refectory_server.engine.in_process_client import InProcessEngineClient
from refectory_server.engine.input_processor import InputProcessor, SamplingDefaults
from refectory_server.engine.messages import StepOutputs
from refectory_server.runner.interface import ModelRunner, RunnerFacts
from refectory_server.runner.simulated_model_runner import SimulatedModelRunner
from refectory_server.runner.simulation import BYTE_ALPHABET
from refectory_server.sampling_params import SamplingParams
from refectory_server.tokenizer.byte_tokenizer import ByteTokenizer
from refectory_server.tokenizer.chat_template import ChatTemplate
from refectory_server.tokenizer.tokenizer import Tokenizer

ALPHABET = BYTE_ALPHABET
CHAT_TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SCHEDULER_CONFIG = SchedulerConfig()
FACTS = RunnerFacts(
    num_blocks=64,
    block_size=16,
    max_model_len=512,
    vocab_size=ByteTokenizer().vocab_size,
    eos_token_ids=(),
    dtype="float32",
    kv_bytes_per_token=1024,
    description="simulated",
)


@dataclass
class RecordingObserver:
    """An `EngineObserver` that keeps what it heard."""

    statuses: list[EngineStatus] = field(default_factory=list)
    steps: list[StepOutputs] = field(default_factory=list)
    ttfts_s: list[float] = field(default_factory=list)
    itls_s: list[float] = field(default_factory=list)
    rejections: list[str] = field(default_factory=list)
    finished: list[tuple[str, FinishReason, RequestTimings]] = field(default_factory=list)
    num_choices: list[int] = field(default_factory=list)

    def on_status(self, status: EngineStatus) -> None:
        self.statuses.append(status)

    def on_step(self, step: StepOutputs) -> None:
        self.steps.append(step)

    def on_first_token(
        self, ttft_s: float, *, num_prompt_tokens: int, num_cached_tokens: int
    ) -> None:
        self.ttfts_s.append(ttft_s)

    def on_next_tokens(self, itl_s: float) -> None:
        self.itls_s.append(itl_s)

    def on_rejected(self, reason: str) -> None:
        self.rejections.append(reason)

    def on_finished(
        self,
        request_id: str,
        params: SamplingParams,
        finish_reason: FinishReason,
        timings: RequestTimings,
    ) -> None:
        self.finished.append((request_id, finish_reason, timings))

    def on_all_choices_finished(self, timings: Sequence[RequestTimings]) -> None:
        self.num_choices.append(len(timings))


@dataclass(frozen=True)
class SimulatedEngine:
    """The engine and the parts behind it, to look at from a test."""

    engine: AsyncEngine
    core: EngineCore
    runner: SimulatedModelRunner


@asynccontextmanager
async def simulated_engine(
    *,
    facts: RunnerFacts = FACTS,
    scheduler_config: SchedulerConfig = SCHEDULER_CONFIG,
    step_seconds: Callable[[SchedulerOutput], float] = lambda _: 0.0,
    observer: EngineObserver | None = None,
    request_timeout_s: float | None = None,
    tokenizer: Tokenizer | None = None,
    wrap_runner: Callable[[ModelRunner], ModelRunner] = lambda runner: runner,
) -> AsyncIterator[SimulatedEngine]:
    """A started engine that speaks lower-case letters; stopped, and its blocks checked, at exit.

    tokenizer: a byte a token if None
    wrap_runner: what the engine drives in place of the runner
    """

    async def make_input_processor(facts: RunnerFacts) -> InputProcessor:
        return InputProcessor(
            tokenizer or ByteTokenizer(),
            ChatTemplate(CHAT_TEMPLATE, {}),
            facts,
            default_sampling=SamplingDefaults(),
            max_logprobs=ModelConfig().max_logprobs,
        )

    runner = SimulatedModelRunner(facts, ALPHABET, step_seconds=step_seconds)
    core = EngineCore.build(wrap_runner(runner), scheduler_config, enable_prefix_caching=True)
    engine = AsyncEngine(
        InProcessEngineClient(core, facts),
        observer or RecordingObserver(),
        make_input_processor,
        request_timeout_s=request_timeout_s,
    )
    await engine.start()
    status = await engine.wait_until_settled()
    assert status.state is EngineState.READY, status
    try:
        yield SimulatedEngine(engine, core, runner)
    finally:
        await engine.shutdown()
    core.check_integrity()


def small_facts(*, num_blocks: int, max_model_len: int | None = None) -> RunnerFacts:
    """`FACTS` with a smaller pool, and what one request can have of it."""
    usable = usable_tokens(num_blocks, FACTS.block_size, SCHEDULER_CONFIG.watermark)
    limit = min(max_model_len or usable, usable)
    return dataclasses.replace(FACTS, num_blocks=num_blocks, max_model_len=limit)
