"""`AsyncEngine`: the asyncio façade that the API talks to.

Owns one stream per choice, abort on early close, and the text side of a request (through
`InputProcessor` and `OutputProcessor`). Does not know HTTP, nor how requests are batched.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from refectory_server.core.request import FinishReason
from refectory_server.core.stats import RequestTimings, SchedulerStats
from refectory_server.engine.client import EngineClient, EngineState, EngineStatus
from refectory_server.engine.input_processor import InputProcessor
from refectory_server.engine.messages import AddRequest, StepOutputs
from refectory_server.engine.observer import EngineObserver
from refectory_server.engine.output_group import OutputGroup
from refectory_server.engine.output_stream import OutputStream, TextDelta
from refectory_server.errors import EngineDead, StartupError
from refectory_server.runner.interface import RunnerFacts
from refectory_server.sampling_params import SamplingParams

__all__ = ["AsyncEngine", "EngineObserver", "TextDelta"]

logger = logging.getLogger(__name__)


class AsyncEngine:
    """One engine with a text side, shared by all handlers of one event loop.

    `make_input_processor` is awaited once, when the engine's facts are known; the engine counts
    as READY only after it.
    """

    def __init__(
        self,
        client: EngineClient,
        observer: EngineObserver,
        make_input_processor: Callable[[RunnerFacts], Awaitable[InputProcessor]],
        *,
        request_timeout_s: float | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seed`: of the seeds that requests without one get, in the order of their arrival."""
        self._client = client
        self._observer = observer
        self._make_input_processor = make_input_processor
        self._request_timeout_s = request_timeout_s
        self._seeds = random.Random(seed)
        self._clock = clock
        self._status = EngineStatus(EngineState.LOADING)
        self._stats = SchedulerStats()
        self._input_processor: InputProcessor | None = None
        self._streams: dict[str, OutputStream] = {}
        self._last_progress_time = 0.0
        self._settled = asyncio.Event()
        self._died = asyncio.Event()
        self._preparation: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the engine and return at once; `status` and the observer tell how it goes."""
        await self._client.start(self._on_step, self._on_client_status)

    async def wait_until_settled(self) -> EngineStatus:
        """Wait until the engine is READY or DEAD."""
        await self._settled.wait()
        return self._status

    async def wait_until_dead(self) -> EngineStatus:
        """Wait until the engine is DEAD; a `shutdown` on purpose does not count."""
        await self._died.wait()
        return self._status

    async def shutdown(self) -> None:
        """Stop the engine; requests still in flight, and later ones, end with `EngineDead`."""
        if self._preparation is not None:
            self._preparation.cancel()
        message = "the server is shutting down"
        # Told to nobody: this end is wanted.
        self._status = EngineStatus(EngineState.DEAD, reason="ShutDown", message=message)
        self._fail_streams(message)
        await self._client.shutdown()

    @property
    def status(self) -> EngineStatus:
        return self._status

    @property
    def facts(self) -> RunnerFacts:
        return self._client.facts

    @property
    def stats(self) -> SchedulerStats:
        """The scheduler's numbers after its latest step."""
        return self._stats

    @property
    def input_processor(self) -> InputProcessor:
        """Tokenising, templates, checks. Raises `EngineDead` unless READY."""
        if self._input_processor is None or self._status.state is not EngineState.READY:
            raise EngineDead(self._status.message or f"the engine is {self._status.state}")
        return self._input_processor

    @property
    def num_in_flight(self) -> int:
        """Choices given to the engine and not yet ended."""
        return len(self._streams)

    def seconds_without_progress(self) -> float:
        """0 while nothing is pending, else seconds since the last step (or first pending)."""
        return self._clock() - self._last_progress_time if self._streams else 0.0

    async def generate(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[TextDelta, None]:
        """Deltas of one prompt, each of one of its `params.n` choices; see `generate_all`."""
        batches = self.generate_all(
            [(prompt_token_ids, params)],
            request_id=request_id,
            priority=priority,
            cache_salt=cache_salt,
        )
        async with aclosing(batches):
            async for deltas in batches:
                for delta in deltas:
                    yield delta

    async def generate_all(
        self,
        prompts: Sequence[tuple[list[int], SamplingParams]],
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[list[TextDelta], None]:
        """Deltas of every prompt's choices until each has had its finish reason.

        The choices are numbered prompt by prompt. Closing the generator early aborts them all. A
        slow reader gets what has come in the meantime as one delta a choice. One choice's error
        is everyone's: the others are aborted. Raises before the first delta: `InvalidRequest`,
        `PromptTooLong`, `QueueFull`, `DeadlineExceeded`, `EngineDead`; later only `RequestFailed`,
        `EngineDead` and, of several choices, `DeadlineExceeded`.
        """
        input_processor = self.input_processor
        for prompt_token_ids, params in prompts:
            input_processor.check(prompt_token_ids, params)
        arrival_time = self._clock()
        timeout_s = self._request_timeout_s
        group = OutputGroup()
        requests: list[AddRequest] = []
        for number, (prompt_token_ids, params) in enumerate(prompts):
            prompt_id = request_id if len(prompts) == 1 else f"{request_id}-p{number}"
            requests.append(
                AddRequest(
                    prompt_id,
                    prompt_token_ids,
                    input_processor.engine_params(params),
                    seed=self._seeds.getrandbits(63) if params.seed is None else params.seed,
                    arrival_time=arrival_time,
                    deadline=None if timeout_s is None else arrival_time + timeout_s,
                    priority=priority,
                    cache_salt=cache_salt,
                )
            )
            group.add_choices(requests[-1], params, input_processor.tokenizer)
        self._open(group)
        if len(requests) == 1:
            self._client.add_request(requests[0])
        else:
            self._client.add_group(requests)
        try:
            while not group.is_drained:
                yield await group.next_deltas()
        finally:
            self._close(group, [params for _, params in prompts])

    def _open(self, group: OutputGroup) -> None:
        for stream in group.streams:
            if stream.request_id in self._streams:
                raise ValueError(f"request id {stream.request_id} is in use")
        if not self._streams:
            self._last_progress_time = self._clock()
        self._streams |= {stream.request_id: stream for stream in group.streams}

    def _close(self, group: OutputGroup, params: Sequence[SamplingParams]) -> None:
        """Abort what has not ended, and tell how each choice did; `params`: of each prompt."""
        # Still here: the reader went away before the end, or another choice failed.
        unfinished = [s for s in group.streams if self._streams.pop(s.request_id, None) is not None]
        is_rejected = any(stream.rejection is not None for stream in group.streams)
        if unfinished and not is_rejected:
            self._client.abort([stream.request_id for stream in unfinished])
        for stream in unfinished:
            stream.end(FinishReason.ABORT)
        if is_rejected:
            return
        streams = iter(group.streams)
        for one in params:
            timings = []
            for stream in itertools.islice(streams, one.n):
                timings.append(stream.timings(self._clock()))
                _log_finished(stream.request_id, stream.finish_reason, timings[-1])
                self._observer.on_finished(
                    stream.request_id, one, stream.finish_reason, timings[-1]
                )
            self._observer.on_all_choices_finished(timings)

    def _on_step(self, step: StepOutputs) -> None:
        self._stats = step.stats
        self._last_progress_time = self._clock()
        for output in step.outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue  # it went away while this step ran
            try:
                gap_s = stream.put(output, step.time)
            except Exception as error:
                # One request's text must not stop the delivery of everyone else's.
                logger.exception("request %s: its output could not be processed", output.request_id)
                stream.fail(f"{type(error).__name__}: {error}")
                gap_s = None
            self._observe_tokens(stream, gap_s)
            if stream.is_ended:
                del self._streams[output.request_id]
                if output.finish_reason is None:
                    # Ended here (stop string, failure), and the engine does not know it yet.
                    self._client.abort([output.request_id])
        self._observer.on_step(step)

    def _observe_tokens(self, stream: OutputStream, gap_s: float | None) -> None:
        if stream.rejection is not None:
            self._observer.on_rejected(stream.rejection)
        elif gap_s is not None and stream.num_token_steps == 1:
            self._observer.on_first_token(
                gap_s,
                num_prompt_tokens=stream.num_prompt_tokens,
                num_cached_tokens=stream.num_cached_tokens,
            )
        elif gap_s is not None:
            self._observer.on_next_tokens(gap_s)

    def _on_client_status(self, status: EngineStatus) -> None:
        if status.state is EngineState.READY:
            self._preparation = asyncio.create_task(self._prepare(status))
            return
        self._set_status(status)
        if status.state is EngineState.DEAD:
            self._fail_streams(status.message)

    async def _prepare(self, status: EngineStatus) -> None:
        try:
            self._input_processor = await self._make_input_processor(self._client.facts)
        except StartupError as error:
            status = EngineStatus(EngineState.DEAD, reason=error.reason, message=str(error))
        except Exception as error:
            # Foreign files may provoke anything; without an answer the engine would load for ever.
            logger.exception("the text side could not be made")
            message = f"{type(error).__name__}: {error}"
            status = EngineStatus(EngineState.DEAD, reason="TextSideFailed", message=message)
        # The engine may have died meanwhile, and the dead do not become ready.
        if self._status.state is EngineState.LOADING:
            self._set_status(status)

    def _set_status(self, status: EngineStatus) -> None:
        self._status = status
        self._observer.on_status(status)
        if status.state is not EngineState.LOADING:
            self._settled.set()
        if status.state is EngineState.DEAD:
            self._died.set()

    def _fail_streams(self, message: str) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail_with(EngineDead(message))


def _log_finished(request_id: str, reason: FinishReason, timings: RequestTimings) -> None:
    queue = "never started" if timings.queue_s is None else f"queued {timings.queue_s:.3f} s"
    logger.info(
        "request %s ended (%s): %d prompt tokens, %d of them cached, %d output tokens, "
        "%d preemptions, %s, %.3f s in all",
        request_id,
        reason,
        timings.num_prompt_tokens,
        timings.num_cached_tokens,
        timings.num_output_tokens,
        timings.num_preemptions,
        queue,
        timings.e2e_s,
        extra={
            "request_id": request_id,
            "finish_reason": reason,
            "num_prompt_tokens": timings.num_prompt_tokens,
            "num_cached_tokens": timings.num_cached_tokens,
            "num_output_tokens": timings.num_output_tokens,
            "num_preemptions": timings.num_preemptions,
            "queue_s": timings.queue_s,
            "ttft_s": timings.ttft_s,
            "e2e_s": timings.e2e_s,
        },
    )
