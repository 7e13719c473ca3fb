"""Wire models of the requests: what a client may send and what this server acts on.

Owns types and shapes; ranges of sampling are `SamplingParams`' own. Knows no engine. Types are
strict ("1" is no number, true is no integer); null means absent wherever a field has a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from refectory_server.api.field_types import (
    LIST_TAG,
    MAX_INT32,
    PROMPTS_TAG,
    TEXT_TAG,
    BadWords,
    LogitBias,
    NoMoreThanFit,
    OnlyFalse,
    Prompt,
    StopStrings,
    TemplateKwargs,
    TokenIds,
    prompt_kind,
    text_or_list,
)
from refectory_server.api.wording import not_served_message, unknown_field_message
from refectory_server.sampling_params import MAX_STOP_TOKEN_IDS

DEFAULT_COMPLETION_TOKENS = 16
"""`max_tokens` of /v1/completions where the request has none, as in OpenAI's API."""


def _describe_names(schema: dict[str, Any], model: type[RequestModel]) -> None:
    """`_check_names` in the words of JSON Schema."""
    schema["additionalProperties"] = False
    schema["properties"] |= {name: {"enum": [None, []]} for name in model.droppable}


class RequestModel(BaseModel):
    """Strict, and no field unheard of."""

    model_config = ConfigDict(strict=True, frozen=True, json_schema_extra=_describe_names)
    droppable: ClassVar[Mapping[str, str]] = {}
    """Fields that are allowed when null or an empty list -> what they ask for otherwise."""
    not_served: ClassVar[Mapping[tuple[str, str], str]] = {}
    """Field and value that the API knows and this server does not -> what they ask for."""

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, value: Any) -> Any:
        # Not pydantic's own check: it would collect one error for each of a million names.
        if not isinstance(value, dict):
            return value
        for (name, refused), feature in cls.not_served.items():
            if value.get(name) == refused:
                allowed = " or ".join(map(repr, get_args(cls.model_fields[name].annotation)))
                raise _not_served(name, refused, feature, allowed)
        for name, item in value.items():
            if name in cls.model_fields:
                continue
            if name not in cls.droppable:
                message = unknown_field_message(name, cls.model_fields)
                raise PydanticCustomError(
                    "unknown_field", "{text}", {"text": message, "name": name}
                )
            if item is not None and item != []:
                raise _not_served(name, item, cls.droppable[name], "null or []")
        return value


def _not_served(name: str, value: object, feature: str, allowed: str) -> PydanticCustomError:
    text = not_served_message(value, feature, allowed)
    return PydanticCustomError("not_served", "{text}", {"text": text, "name": name})


class StreamOptions(RequestModel):
    include_usage: bool | None = None
    include_obfuscation: OnlyFalse | None = None
    continuous_usage_stats: OnlyFalse | None = None


class GenerationRequest(RequestModel):
    """Fields that both generation routes honour."""

    model: str | None = None
    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: LogitBias | None = None
    allowed_token_ids: Annotated[TokenIds, Field(min_length=1)] | None = None
    bad_words: BadWords | None = None
    seed: int | None = None
    stop: StopStrings | None = None
    stop_token_ids: Annotated[TokenIds, Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Field(ge=-MAX_INT32 - 1, le=MAX_INT32)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    @model_validator(mode="after")
    def _check_stream_options(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError(
                "needs_stream", "stream_options is only allowed with stream: true"
            )
        return self

    @model_validator(mode="after")
    def _check_best_of(self) -> GenerationRequest:
        num_choices = 1 if self.n is None else self.n
        if self.best_of is not None and self.best_of != num_choices:
            raise PydanticCustomError(
                "not_all",
                "best_of is {best_of}; this server accepts only n, {n}",
                {"best_of": self.best_of, "n": num_choices},
            )
        return self

    @property
    def num_logprobs(self) -> int | None:
        """Most probable tokens to tell of beside each token; None: no log-probabilities."""
        raise NotImplementedError

    @property
    def includes_usage(self) -> bool:
        """The stream shall end with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class TextPart(RequestModel):
    not_served: ClassVar[Mapping[tuple[str, str], str]] = {
        ("type", "audio_url"): "audio",
        ("type", "file"): "files",
        ("type", "image_url"): "images",
        ("type", "input_audio"): "audio",
        ("type", "refusal"): "refusals",
        ("type", "video_url"): "video",
    }
    type: Literal["text"]
    text: str


MessageContent = Annotated[
    Annotated[str, Tag(TEXT_TAG)] | Annotated[list[TextPart], Field(fail_fast=True), Tag(LIST_TAG)],
    Discriminator(text_or_list),
]


class ChatMessage(RequestModel):
    # Clients send answers back as they got them.
    droppable: ClassVar[Mapping[str, str]] = {
        "annotations": "annotations",
        "audio": "audio",
        "function_call": "tool calls",
        "reasoning": "reasoning",
        "reasoning_content": "reasoning",
        "refusal": "refusals",
        "tool_calls": "tool calls",
    }
    not_served: ClassVar[Mapping[tuple[str, str], str]] = {
        ("role", "function"): "tool calls",
        ("role", "tool"): "tool calls",
    }
    role: Literal["system", "developer", "user", "assistant"]
    content: MessageContent
    name: str | None = None

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates read it: text content, and no role but the usual three."""
        content = self.content
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        message = {"role": role, "content": content}
        return message if self.name is None else message | {"name": self.name}


Messages = Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True), NoMoreThanFit]


class TemplateFields(RequestModel):
    """How messages become a prompt."""

    add_generation_prompt: bool | None = None
    """Default: true, unless the final message is to be continued."""
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None

    @property
    def adds_generation_prompt(self) -> bool:
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt


class ChatCompletionRequest(GenerationRequest, TemplateFields):
    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _check_top_logprobs(self) -> ChatCompletionRequest:
        if self.top_logprobs and not self.logprobs:
            raise PydanticCustomError(
                "needs_logprobs",
                "top_logprobs is {count}; without logprobs: true only 0 is allowed",
                {"count": self.top_logprobs},
            )
        return self

    @model_validator(mode="after")
    def _check_token_limits(self) -> ChatCompletionRequest:
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise PydanticCustomError(
                "two_limits",
                "max_tokens is {old} and max_completion_tokens is {new}; "
                "give one of them, or the same value",
                {"old": self.max_tokens, "new": self.max_completion_tokens},
            )
        return self

    @model_validator(mode="after")
    def _check_continuation(self) -> ChatCompletionRequest:
        check_continuation(self, self.messages)
        return self


class CompletionRequest(GenerationRequest):
    prompt: Prompt
    logprobs: int | None = None
    echo: bool | None = None

    @model_validator(mode="after")
    def _check_echo(self) -> CompletionRequest:
        if self.echo and self.logprobs is not None:
            raise PydanticCustomError(
                "echoed_logprobs",
                "echo is true; with logprobs only false is allowed: there are no "
                "log-probabilities of a prompt",
            )
        return self

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> dict[str, str | list[int]]:
        """Each prompt by its name in an error."""
        if prompt_kind(self.prompt) != PROMPTS_TAG:
            return {"prompt": cast("str | list[int]", self.prompt)}
        prompts = cast("list[str | list[int]]", self.prompt)
        return {f"prompt.{index}": prompt for index, prompt in enumerate(prompts)}


class TokenizeRequest(TemplateFields):
    """A prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    """Default: true for a prompt, false for messages (the template writes them)."""
    return_token_strs: OnlyFalse | None = None

    @model_validator(mode="after")
    def _check_one_input(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("one_input", "give either prompt or messages")
        if self.messages is not None:
            if self.add_special_tokens:
                raise PydanticCustomError(
                    "template_adds",
                    "add_special_tokens is true; with messages the template writes them, "
                    "only false is allowed",
                )
            check_continuation(self, self.messages)
            return self
        for name in TemplateFields.model_fields:
            if getattr(self, name) is not None:
                raise PydanticCustomError(
                    "needs_messages", "{name} is only allowed with messages", {"name": name}
                )
        return self


class DetokenizeRequest(RequestModel):
    model: str | None = None
    tokens: TokenIds


def check_continuation(fields: TemplateFields, messages: list[ChatMessage]) -> None:
    if not fields.continue_final_message:
        return
    if fields.add_generation_prompt:
        raise PydanticCustomError(
            "two_endings",
            "continue_final_message and add_generation_prompt are both true; only one is allowed",
        )
    if messages[-1].role != "assistant":
        raise PydanticCustomError(
            "no_continuation",
            "continue_final_message is true, but the final message's role is {role}; "
            "it must be assistant",
            {"role": messages[-1].role},
        )
