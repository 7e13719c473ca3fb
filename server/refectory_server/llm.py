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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tqdm import tqdm

from refectory_server.config import (
    EMBEDDED_MODEL,
    CacheConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
    SimulatorConfig,
)
from refectory_server.core.request import FinishReason
from refectory_server.core.stats import RequestTimings
from refectory_server.engine.engine_core import EngineCore
from refectory_server.engine.messages import AbortRequests, AddRequest, EngineOutput
from refectory_server.engine.output_processor import OutputProcessor
from refectory_server.errors import InvalidRequest
from refectory_server.runner.load import load_runner
from refectory_server.sampling_params import SamplingParams
from refectory_server.text_side import TextSide
from refectory_server.tokenizer.tokenizer import Tokenizer

Prompt = str | Mapping[str, Any]
"""Text, or vLLM's `{"prompt": text}` or `{"prompt_token_ids": ids}`."""
Message = Mapping[str, Any]

_GROUPS = (ModelConfig, SimulatorConfig, CacheConfig, SchedulerConfig)
_UNLIMITED = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    """stop, length, or error; then `error_message` says what happened."""
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
    metrics: RequestTimings
    finished: bool = True


class LLM:
    """A loaded model. Raises `StartupError` for one that cannot be loaded.

    `model` and `options` are those of `refectory serve`, with underscores:
    `LLM("my-folder", max_num_seqs=32, enable_prefix_caching=False)`. A queue limit is off unless
    it is given.
    """

    def __init__(self, model: str = EMBEDDED_MODEL, **options: Any) -> None:
        config = _make_config({"max_num_queued_reqs": _UNLIMITED, **options, "model": model})
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
        if isinstance(prompts, str | Mapping):
            prompts = [prompts]
        encoded = [self._encode(prompt) for prompt in prompts]
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
        conversations: Any = messages
        if messages and isinstance(messages[0], Mapping):
            conversations = [messages]
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
            for conversation in conversations
        ]
        return self._run(encoded, sampling_params, use_tqdm)

    def _encode(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        match prompt:
            case str():
                return prompt, self._input_processor.encode_prompt(prompt)
            case {"prompt_token_ids": token_ids}:
                return prompt.get("prompt"), list(token_ids)
            case {"prompt": str(text)}:
                return text, self._input_processor.encode_prompt(text)
            case _:
                raise InvalidRequest(
                    f"a prompt is {prompt!r:.80}; allowed are a string and a dict with "
                    "'prompt' or 'prompt_token_ids'",
                    field="prompt",
                )

    def _run(
        self,
        encoded: Sequence[tuple[str | None, list[int]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        params = self._params_for(len(encoded), sampling_params)
        for (_, prompt_token_ids), one in zip(encoded, params, strict=True):
            self._input_processor.check(prompt_token_ids, one)
        pending = {
            f"llm-{next(self._numbers)}": _Pending(prompt, ids, one, self.get_tokenizer())
            for (prompt, ids), one in zip(encoded, params, strict=True)
        }
        for request_id, request in pending.items():
            self._core.handle(request.message(request_id, self._seeds.getrandbits(63)))
        finished: dict[str, RequestOutput] = {}
        try:
            with tqdm(total=len(pending), desc="Processed prompts", disable=not use_tqdm) as bar:
                for request_id in self._finish_all(pending):
                    finished[request_id] = pending[request_id].result(request_id)
                    bar.update()
        finally:
            # An interrupt in the middle leaves nothing behind for the next call.
            self._core.handle(AbortRequests([i for i in pending if i not in finished]))
        return [finished[request_id] for request_id in pending]

    def _finish_all(self, pending: Mapping[str, _Pending]) -> Iterator[str]:
        """Step until all have ended; the ids as they end."""
        num_left = len(pending)
        while num_left:
            for output in self._core.step().outputs:
                request = pending.get(output.request_id)
                if request is None:
                    continue  # of an interrupted call
                if request.take(output):
                    if output.finish_reason is None:
                        self._core.handle(AbortRequests([output.request_id]))
                    num_left -= 1
                    yield output.request_id

    def _params_for(
        self, count: int, sampling_params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        if sampling_params is None:
            return [self.get_default_sampling_params()] * count
        if isinstance(sampling_params, SamplingParams):
            return [sampling_params] * count
        if len(sampling_params) != count:
            raise InvalidRequest(
                f"there are {len(sampling_params)} sampling_params for {count} prompts; "
                "give one for all, or one for each",
                field="sampling_params",
            )
        return list(sampling_params)


class _Pending:
    """One prompt on its way through the engine."""

    def __init__(
        self,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
    ) -> None:
        self._prompt = prompt
        self._prompt_token_ids = prompt_token_ids
        self._params = params
        self._processor = OutputProcessor(tokenizer, prompt_token_ids, params)
        self._text = ""
        self._token_ids: list[int] = []
        self._finish_reason: FinishReason | None = None
        self._error_message: str | None = None
        self._num_cached_tokens = self._num_preemptions = 0
        self._arrival_time = time.monotonic()
        self._scheduled_time: float | None = None
        self._first_token_time: float | None = None
        self._last_token_time: float | None = None

    def message(self, request_id: str, drawn_seed: int) -> AddRequest:
        """`drawn_seed` counts where none was asked for."""
        seed = self._params.seed
        return AddRequest(
            request_id,
            self._prompt_token_ids,
            dataclasses.replace(self._params, stop=()),
            seed=drawn_seed if seed is None else seed,
            arrival_time=self._arrival_time,
        )

    def take(self, output: EngineOutput) -> bool:
        """Take one step's news; whether the answer ended with it."""
        if self._finish_reason is not None:
            return False  # its text ended it, and the engine has not heard yet
        self._num_cached_tokens = output.num_cached_tokens
        self._num_preemptions = output.num_preemptions
        self._scheduled_time = output.scheduled_time or self._scheduled_time
        if output.finish_reason is FinishReason.ERROR:
            self._finish_reason = output.finish_reason
            self._error_message = output.message
            return True
        processed = self._processor.process(output)
        self._text += processed.text
        self._token_ids += processed.token_ids
        self._finish_reason = processed.finish_reason
        if processed.token_ids:
            self._last_token_time = time.monotonic()
            self._first_token_time = self._first_token_time or self._last_token_time
        return self._finish_reason is not None

    def result(self, request_id: str) -> RequestOutput:
        assert self._finish_reason is not None
        answer = CompletionOutput(
            0, self._text, self._token_ids, str(self._finish_reason), self._error_message
        )
        timings = RequestTimings(
            arrival_time=self._arrival_time,
            scheduled_time=self._scheduled_time,
            first_token_time=self._first_token_time,
            last_token_time=self._last_token_time,
            finish_time=time.monotonic(),
            num_prompt_tokens=len(self._prompt_token_ids),
            num_cached_tokens=self._num_cached_tokens,
            num_output_tokens=len(self._token_ids),
            num_preemptions=self._num_preemptions,
        )
        return RequestOutput(
            request_id,
            self._prompt,
            self._prompt_token_ids,
            [answer],
            self._num_cached_tokens,
            timings,
        )


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
        cache=CacheConfig(**values[CacheConfig]),
        scheduler=SchedulerConfig(**values[SchedulerConfig]),
    )
