"""`LLM`: the engine inside the caller's process, for scripts and notebooks.

Owns the synchronous loop over an `EngineCore` and vLLM's names and result shapes. Knows no HTTP and
no event loop. Every engine flag of the command line is a keyword.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from refectory_server.config import (
    EMBEDDED_MODEL,
    CacheConfig,
    CpuConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
    SimulatorConfig,
)
from refectory_server.core.stats import RequestTimings
from refectory_server.engine.engine_core import EngineCore
from refectory_server.engine.input_processor import InputProcessor
from refectory_server.engine.messages import AbortRequests, AddRequest, choice_id
from refectory_server.engine.output_processor import OutputProcessor
from refectory_server.engine.output_stream import OutputStream
from refectory_server.engine.text_logprobs import TextLogprobs
from refectory_server.llm_inputs import (
    Message,
    Prompt,
    list_conversations,
    list_params,
    list_prompts,
)
from refectory_server.models.source import hub_id_of
from refectory_server.runner.load import load_runner
from refectory_server.sampling_params import SamplingParams
from refectory_server.text_side import TextSide
from refectory_server.tokenizer.tokenizer import Tokenizer

_GROUPS = (ModelConfig, SimulatorConfig, CpuConfig, CacheConfig, SchedulerConfig)
_UNLIMITED = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Logprob:
    """How probable a token was, before penalties and temperature."""

    logprob: float
    rank: int
    """1 for the most probable one."""
    decoded_token: str


@dataclasses.dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer, the `index`-th of its prompt's."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    """stop, length, or error; then `error_message` says what happened."""
    logprobs: list[dict[int, Logprob]] | None = None
    """For each token the chosen one and the most probable ones, where asked for."""
    error_message: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RequestOutput:
    """One prompt with its answers."""

    request_id: str
    prompt: str | None
    """None where ids were given."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    num_preemptions: int
    """How often one of the answers lost its KV blocks and was computed again."""
    metrics: RequestTimings
    """Of the first answer."""
    finished: bool = True


class LLM:
    """A loaded model. Raises `StartupError` for one that cannot be loaded.

    `model` and `options` are those of `refectory serve`, with underscores:
    `LLM("my-folder", max_num_seqs=32, enable_prefix_caching=False)`. A model of a hub is
    downloaded first. A queue limit is off unless it is given.
    """

    def __init__(self, model: str = EMBEDDED_MODEL, **options: Any) -> None:
        config = _with_local_model(
            _make_config({"max_num_queued_reqs": _UNLIMITED, **options, "model": model})
        )
        self._text_side = TextSide.load(config)
        runner = load_runner(config, lambda _phase, _progress: None)
        self._core = EngineCore.build(
            runner, config.scheduler, enable_prefix_caching=config.cache.enable_prefix_caching
        )
        self._input_processor = self._text_side.make_input_processor(runner.facts)
        self._numbers = itertools.count()
        self._seeds = random.Random(config.model.seed)

    def get_tokenizer(self) -> Tokenizer:
        return self._text_side.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own defaults (generation_config.json) over `SamplingParams`'."""
        return SamplingParams(**self._text_side.default_sampling.merged({}))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answers in the order of the prompts; one `SamplingParams` for all, or one for each.

        Raises `InvalidRequest`, before anything is computed, if any prompt cannot be served. A
        failure of one request later is its `finish_reason` "error"; the others go on.
        """
        encoded = [
            (text, self._input_processor.encode_prompt(text or "") if ids is None else ids)
            for text, ids in list_prompts(prompts)
        ]
        return self._run(encoded, sampling_params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers to one conversation or to a list of them; otherwise like `generate`."""
        encoded = [
            (
                None,
                self._input_processor.encode_chat(
                    conversation,
                    **(chat_template_kwargs or {}),
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                ),
            )
            for conversation in list_conversations(messages)
        ]
        return self._run(encoded, sampling_params, use_tqdm)

    def _run(
        self,
        encoded: Sequence[tuple[str | None, list[int]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        params = list_params(
            self.get_default_sampling_params() if sampling_params is None else sampling_params,
            len(encoded),
        )
        for (_, prompt_token_ids), one in zip(encoded, params, strict=True):
            self._input_processor.check(prompt_token_ids, one)
        pending = [
            _Pending(f"llm-{next(self._numbers)}", prompt, ids, one, self.get_tokenizer())
            for (prompt, ids), one in zip(encoded, params, strict=True)
        ]
        messages = [r.message(self._input_processor, self._seeds.getrandbits(63)) for r in pending]
        for message in messages:
            self._core.handle(message)
        open_streams = {s.request_id: s for request in pending for s in request.streams}
        try:
            with tqdm(total=len(pending), desc="Processed prompts", disable=not use_tqdm) as bar:
                while open_streams:
                    self._step(open_streams)
                    bar.update(sum(request.is_ended for request in pending) - bar.n)
        finally:
            # An interrupt in the middle leaves nothing behind for the next call.
            self._core.handle(AbortRequests(list(open_streams)))
        return [request.result() for request in pending]

    def _step(self, open_streams: dict[str, OutputStream]) -> None:
        """One step; what ended in it leaves `open_streams`."""
        step = self._core.step()
        for output in step.outputs:
            stream = open_streams.get(output.request_id)
            if stream is None:
                continue  # of an interrupted call, or ended by its text
            stream.put(output, step.time)
            if stream.is_ended:
                del open_streams[output.request_id]
                if output.finish_reason is None:
                    self._core.handle(AbortRequests([output.request_id]))
        if not self._core.has_work:
            # A refusal is told once for all the choices of a prompt.
            for stream in open_streams.values():
                stream.fail("the queue was full")
            open_streams.clear()


class _Pending:
    """One prompt on its way through the engine, with a stream for each of its choices."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
    ) -> None:
        self._request_id = request_id
        self._prompt = prompt
        self._prompt_token_ids = prompt_token_ids
        self._params = params
        self._tokenizer = tokenizer
        self._arrival_time = time.monotonic()
        self.streams = [
            OutputStream(
                choice_id(request_id, index),
                OutputProcessor(tokenizer, prompt_token_ids, params),
                lambda _stream: None,
                index=index,
                num_prompt_tokens=len(prompt_token_ids),
                arrival_time=self._arrival_time,
            )
            for index in range(params.n)
        ]

    @property
    def is_ended(self) -> bool:
        return all(stream.is_ended for stream in self.streams)

    def message(self, processor: InputProcessor, drawn_seed: int) -> AddRequest:
        """`drawn_seed` counts where none was asked for."""
        seed = self._params.seed
        return AddRequest(
            self._request_id,
            self._prompt_token_ids,
            processor.engine_params(self._params),
            seed=drawn_seed if seed is None else seed,
            arrival_time=self._arrival_time,
        )

    def result(self) -> RequestOutput:
        first = self.streams[0]
        return RequestOutput(
            self._request_id,
            self._prompt,
            self._prompt_token_ids,
            [self._completion(stream) for stream in self.streams],
            first.num_cached_tokens,
            sum(stream.num_preemptions for stream in self.streams),
            first.timings(time.monotonic()),
        )

    def _completion(self, stream: OutputStream) -> CompletionOutput:
        delta = stream.take_delta()
        logprobs = None
        if self._params.logprobs is not None:
            entries = () if delta is None else delta.logprobs
            logprobs = [_make_logprobs(entry, self._tokenizer) for entry in entries]
        return CompletionOutput(
            index=stream.index,
            text="" if delta is None else delta.text,
            token_ids=[] if delta is None else list(delta.token_ids),
            finish_reason=str(stream.finish_reason),
            logprobs=logprobs,
            error_message=None if stream.error is None else str(stream.error),
        )


def _make_logprobs(entry: TextLogprobs, tokenizer: Tokenizer) -> dict[int, Logprob]:
    chosen = entry.logprobs
    ranked = {token_id: (value, rank) for rank, (token_id, value) in enumerate(chosen.top, 1)}
    ranked[entry.token_id] = (chosen.logprob, chosen.rank)
    return {
        token_id: Logprob(value, rank, tokenizer.decode([token_id], skip_special_tokens=False))
        for token_id, (value, rank) in ranked.items()
    }


def _make_config(options: Mapping[str, Any]) -> ServerConfig:
    """Raises `TypeError` for an unknown option, naming the nearest, `ConfigError` for a value."""
    group_of = {f.name: group for group in _GROUPS for f in dataclasses.fields(group)}
    values: dict[type, dict[str, Any]] = {group: {} for group in _GROUPS}
    for name, value in options.items():
        if name not in group_of:
            near = difflib.get_close_matches(name, group_of, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise TypeError(f"LLM() has no option {name}{hint}")
        values[group_of[name]][name] = value
    return ServerConfig(
        model=ModelConfig(**values[ModelConfig]),
        simulator=SimulatorConfig(**values[SimulatorConfig]),
        cpu=CpuConfig(**values[CpuConfig]),
        cache=CacheConfig(**values[CacheConfig]),
        scheduler=SchedulerConfig(**values[SchedulerConfig]),
    )


def _with_local_model(config: ServerConfig) -> ServerConfig:
    """With the folder of a hub's model in place of its id."""
    if config.simulator.simulate is not None:
        return config
    hub_id = hub_id_of(config.model.model, config.model.revision)
    if hub_id is None:
        return config
    # Here, because it is slow to import.
    from refectory_server.models.hub import fetch_model

    folder = fetch_model(hub_id, config.model.download_dir, lambda num_bytes, total_bytes: None)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, model=str(folder)))
