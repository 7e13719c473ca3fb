"""What a generation request asks of the engine: prompts as ids, each with its parameters.

Owns what the two generation routes share, and the limits on how much one request may ask for. Does
not know HTTP, nor answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from refectory_server.api.protocol import (
    DEFAULT_COMPLETION_TOKENS,
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    GenerationRequest,
    TemplateFields,
)
from refectory_server.api.wording import show
from refectory_server.config import SchedulerConfig
from refectory_server.engine.input_processor import InputProcessor
from refectory_server.errors import InvalidRequest
from refectory_server.sampling_params import MAX_CHOICES, SamplingParams

SAMPLING_FIELDS = (
    "n",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
)
"""Fields that the wire and `SamplingParams` share as they are."""

Prompts = list[tuple[list[int], SamplingParams]]
"""Token ids and parameters of each prompt."""


def prepare(
    request: GenerationRequest,
    processor: InputProcessor,
    scheduler: SchedulerConfig,
    *,
    max_model_len: int,
) -> Prompts:
    """Token ids and parameters of each prompt, checked; may take long for long prompts.

    Raises `InvalidRequest` or `PromptTooLong`, in the field names that the client used.
    """
    _check_priority(request, scheduler)
    fields = request.prompts if isinstance(request, CompletionRequest) else {"messages": None}
    _check_num_choices(request, len(fields), scheduler)
    prompts = []
    for field, prompt in fields.items():
        token_ids = _encode(request, prompt, field, processor)
        params = _checked_params(request, processor, token_ids, field, max_model_len)
        prompts.append((token_ids, params))
    return prompts


def echoed_texts(request: GenerationRequest, processor: InputProcessor, n: int) -> list[str]:
    """What each choice's text begins with; empty where nothing is to be echoed."""
    if not isinstance(request, CompletionRequest) or not request.echo:
        return []
    skips = request.skip_special_tokens is not False
    texts = (
        prompt if isinstance(prompt, str) else processor.tokenizer.decode(prompt, skips)
        for prompt in request.prompts.values()
    )
    return [text for text in texts for _ in range(n)]


def encode_messages(
    messages: list[ChatMessage], fields: TemplateFields, processor: InputProcessor
) -> list[int]:
    return processor.encode_chat(
        [message.for_template() for message in messages],
        add_generation_prompt=fields.adds_generation_prompt,
        continue_final_message=bool(fields.continue_final_message),
        **(fields.chat_template_kwargs or {}),
    )


def _check_priority(request: GenerationRequest, scheduler: SchedulerConfig) -> None:
    if request.priority and scheduler.scheduling_policy != "priority":
        raise InvalidRequest(
            f"priority is {request.priority}; only 0 is allowed, as this server's "
            f"--scheduling-policy is {scheduler.scheduling_policy}",
            field="priority",
        )


def _check_num_choices(
    request: GenerationRequest, num_prompts: int, scheduler: SchedulerConfig
) -> None:
    """A request too large for an idle engine would be told to try again for ever."""
    num_choices = 1 if request.n is None else request.n
    limit = min(MAX_CHOICES, scheduler.max_num_seqs)
    if not 1 <= num_choices <= limit:
        raise InvalidRequest(f"n is {show(num_choices)}; allowed is [1, {limit}]", field="n")
    limit = scheduler.max_num_seqs + scheduler.queue_limit
    if num_prompts * num_choices > limit:
        raise InvalidRequest(
            f"prompt has {num_prompts} prompts of {num_choices} choices each; at most {limit} "
            "choices fit into the seats and the queue here",
            field="prompt",
        )


def _encode(
    request: GenerationRequest,
    prompt: str | list[int] | None,
    field: str,
    processor: InputProcessor,
) -> list[int]:
    if isinstance(request, ChatCompletionRequest):
        return encode_messages(request.messages, request, processor)
    if isinstance(prompt, str):
        return processor.encode_prompt(prompt, field=field)
    assert prompt is not None
    return prompt


def _checked_params(
    request: GenerationRequest,
    processor: InputProcessor,
    prompt_token_ids: list[int],
    prompt_field: str,
    max_model_len: int,
) -> SamplingParams:
    spelled = {}
    max_tokens = request.max_tokens
    if isinstance(request, ChatCompletionRequest):
        spelled["logprobs"] = "top_logprobs"
        if max_tokens is None:
            max_tokens = request.max_completion_tokens
            spelled["max_tokens"] = "max_completion_tokens"
    elif max_tokens is None:
        room = max(1, max_model_len - len(prompt_token_ids))
        max_tokens = min(DEFAULT_COMPLETION_TOKENS, room)
    requested: dict[str, Any] = {name: getattr(request, name) for name in SAMPLING_FIELDS}
    requested |= {"max_tokens": max_tokens, "logprobs": request.num_logprobs}
    with _spelled(spelled):
        params = processor.sampling_params(requested, num_prompt_tokens=len(prompt_token_ids))
        processor.check(prompt_token_ids, params, prompt_field=prompt_field)
    return params


@contextmanager
def _spelled(as_sent: Mapping[str, str]) -> Iterator[None]:
    """Errors speak of a field by the name that the client used."""
    try:
        yield
    except InvalidRequest as error:
        if error.field is None or error.field not in as_sent:
            raise
        name = as_sent[error.field]
        raise InvalidRequest(str(error).replace(error.field, name, 1), field=name) from error
