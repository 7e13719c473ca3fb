"""One generation between the wire and the engine: parameters in, counts and text out.

Owns what the two generation routes share: sampling parameters, usage, finish words. Does not know
HTTP, nor the shapes of the two answers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

from refectory_server.api.protocol import (
    DEFAULT_COMPLETION_TOKENS,
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    GenerationRequest,
    TemplateFields,
)
from refectory_server.api.responses import FinishWord, PromptTokensDetails, Usage
from refectory_server.core.request import FinishReason
from refectory_server.engine.async_engine import TextDelta
from refectory_server.engine.input_processor import InputProcessor
from refectory_server.errors import InvalidRequest, RequestFailed
from refectory_server.sampling_params import SamplingParams

SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "ignore_eos",
    "skip_special_tokens",
)
"""Fields that the wire and `SamplingParams` share as they are."""


@dataclass(frozen=True, slots=True)
class WholeText:
    """A finished generation."""

    text: str
    finish_word: FinishWord
    usage: Usage


def prepare(
    request: GenerationRequest, processor: InputProcessor, *, max_model_len: int
) -> tuple[list[int], SamplingParams]:
    """Token ids and parameters, checked; may take long for a long prompt.

    Raises `InvalidRequest` or `PromptTooLong`, in the field names that the client used.
    """
    prompt_token_ids = _encode(request, processor)
    return prompt_token_ids, _checked_params(request, processor, prompt_token_ids, max_model_len)


def encode_messages(
    messages: list[ChatMessage], fields: TemplateFields, processor: InputProcessor
) -> list[int]:
    return processor.encode_chat(
        [message.for_template() for message in messages],
        add_generation_prompt=fields.adds_generation_prompt,
        continue_final_message=bool(fields.continue_final_message),
        **(fields.chat_template_kwargs or {}),
    )


def _encode(request: GenerationRequest, processor: InputProcessor) -> list[int]:
    match request:
        case ChatCompletionRequest():
            return encode_messages(request.messages, request, processor)
        case CompletionRequest(prompt=str(text)):
            return processor.encode_prompt(text)
        case CompletionRequest(prompt=list(token_ids)):
            return token_ids
        case _:
            raise TypeError(f"{type(request).__name__} is no generation request")


def _checked_params(
    request: GenerationRequest,
    processor: InputProcessor,
    prompt_token_ids: list[int],
    max_model_len: int,
) -> SamplingParams:
    is_chat = isinstance(request, ChatCompletionRequest)
    max_tokens_field = "max_tokens"
    max_tokens = request.max_tokens
    if isinstance(request, ChatCompletionRequest) and max_tokens is None:
        max_tokens = request.max_completion_tokens
        max_tokens_field = "max_completion_tokens"
    if isinstance(request, CompletionRequest) and max_tokens is None:
        room = max(1, max_model_len - len(prompt_token_ids))
        max_tokens = min(DEFAULT_COMPLETION_TOKENS, room)
    requested: dict[str, Any] = {name: getattr(request, name) for name in SAMPLING_FIELDS}
    requested |= {
        "max_tokens": max_tokens,
        "stop": None if request.stop is None else tuple(request.stop),
        "stop_token_ids": None if request.stop_token_ids is None else tuple(request.stop_token_ids),
    }
    with _spelled("max_tokens", max_tokens_field):
        params = processor.sampling_params(requested, num_prompt_tokens=len(prompt_token_ids))
    processor.check(
        prompt_token_ids,
        params,
        prompt_field="messages" if is_chat else "prompt",
        max_tokens_field=max_tokens_field,
    )
    return params


async def collect(deltas: AsyncGenerator[TextDelta, None]) -> WholeText:
    """Read a generation to its end; closes it in every case."""
    pieces: list[str] = []
    async with aclosing(deltas):
        async for delta in deltas:
            pieces.append(delta.text)
            if delta.finish_reason is not None:
                return WholeText("".join(pieces), finish_word(delta), usage(delta))
    raise RequestFailed("the generation ended without a finish reason")


def finish_word(delta: TextDelta) -> FinishWord:
    """The API's word for the end. Raises `RequestFailed` for an end that is no answer."""
    match delta.finish_reason:
        case FinishReason.STOP:
            return "stop"
        case FinishReason.LENGTH:
            return "length"
        case reason:
            raise RequestFailed(f"the request ended early: {reason}")


def usage(delta: TextDelta) -> Usage:
    return Usage(
        prompt_tokens=delta.num_prompt_tokens,
        completion_tokens=delta.num_output_tokens,
        total_tokens=delta.num_prompt_tokens + delta.num_output_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=delta.num_cached_tokens),
    )


@contextmanager
def _spelled(field: str, as_sent: str) -> Iterator[None]:
    """Errors about `field` speak of it by the name that the client used."""
    try:
        yield
    except InvalidRequest as error:
        if error.field != field or as_sent == field:
            raise
        raise InvalidRequest(str(error).replace(field, as_sent, 1), field=as_sent) from error
