"""Types of single fields: ids, prompts, stop strings, biases, template arguments.

Owns how a value of JSON becomes one of Python, and where a check ends early: a body may hold
millions of items. Knows no request.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError, PydanticKnownError

from refectory_server.api.wording import show
from refectory_server.sampling_params import MAX_BAD_WORDS, MAX_LOGIT_BIASES, MAX_STOP_STRINGS

MAX_INT32 = 2**31 - 1
MAX_TEMPLATE_KWARGS_DEPTH = 16
RESERVED_TEMPLATE_KWARGS = frozenset(
    {"messages", "add_generation_prompt", "continue_final_message", "tools"}
)
MAX_PROMPTS = 128
MAX_ID_DIGITS = 10
TEXT_TAG, LIST_TAG, PROMPTS_TAG = "<text>", "<list>", "<prompts>"
"""Union tags: pydantic puts them into error locations, `parsing` takes them out again."""


def text_or_list(value: object) -> str:
    return LIST_TAG if isinstance(value, list) else TEXT_TAG


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _no_number(value: object) -> object:
    """To `Literal`, 0 is false."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise PydanticKnownError("bool_type")
    return value


def prompt_kind(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        return PROMPTS_TAG
    return text_or_list(value)


def _as_bias(value: object) -> object:
    """JSON's keys are strings; here they are token ids. Ends at the first bad one."""
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_LOGIT_BIASES:
        limits = {"max_length": MAX_LOGIT_BIASES, "actual_length": len(value)}
        raise PydanticKnownError("too_long", {"field_type": "Dictionary", **limits})
    biases = {}
    for name, bias in value.items():
        is_id = name.isascii() and name.isdigit() and len(name) <= MAX_ID_DIGITS
        if not is_id or str(int(name)) != name:
            raise PydanticCustomError(
                "no_token_id", "has the key {name}; each must be a token id", {"name": show(name)}
            )
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise PydanticCustomError(
                "no_bias",
                "of token {name} is {bias}; it must be a number",
                {"name": name, "bias": show(bias)},
            )
        biases[int(name)] = bias
    return biases


def _check_num_texts(value: object, info: ValidationInfo) -> object:
    """Refuse more than could fit before any is looked at: each takes microseconds."""
    assert info.context is not None
    max_model_len = info.context["max_model_len"]
    num_texts = sum(map(_num_texts, value)) if isinstance(value, list) else 0
    if num_texts > max_model_len:
        raise PydanticCustomError(
            "too_many_texts",
            "has {count} texts; at most {limit} are allowed: the context is {limit} tokens",
            {"count": num_texts, "limit": max_model_len},
        )
    return value


def _num_texts(message: object) -> int:
    """A message's content is one text, or as many as it has parts."""
    content = message.get("content") if isinstance(message, dict) else None
    return len(content) or 1 if isinstance(content, list) else 1


def _check_template_kwargs(value: dict[str, Any]) -> dict[str, Any]:
    for name in value:
        if name in RESERVED_TEMPLATE_KWARGS:
            raise PydanticCustomError(
                "reserved", "may not hold {name}: the request's own field says it", {"name": name}
            )
    return _check_depth(value)


def _check_depth(value: dict[str, Any]) -> dict[str, Any]:
    """Templates walk their arguments recursively."""
    level: list[Any] = [value]
    for _ in range(MAX_TEMPLATE_KWARGS_DEPTH):
        level = [item for parent in level for item in _children(parent)]
        if not level:
            return value
    raise PydanticCustomError(
        "too_deep", "is nested more than {limit} deep", {"limit": MAX_TEMPLATE_KWARGS_DEPTH}
    )


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


TokenId = Annotated[int, Field(ge=0, le=MAX_INT32)]
# A list ends at its first bad item: pydantic would collect one error for each of millions.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
OnlyFalse = Annotated[Literal[False], BeforeValidator(_no_number)]
StopList = Annotated[list[str], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)]
StopStrings = Annotated[StopList, BeforeValidator(_as_list, json_schema_input_type=str | StopList)]
BadWords = Annotated[list[str], Field(max_length=MAX_BAD_WORDS, fail_fast=True)]
TemplateKwargs = Annotated[dict[str, Any], AfterValidator(_check_template_kwargs)]
LogitBias = Annotated[
    dict[int, float],
    BeforeValidator(_as_bias),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": f"^(0|[1-9][0-9]{{0,{MAX_ID_DIGITS - 1}}})$"},
            "additionalProperties": {"type": "number"},
            "maxProperties": MAX_LOGIT_BIASES,
        }
    ),
]
NoMoreThanFit = BeforeValidator(_check_num_texts)
OnePrompt = Annotated[
    Annotated[str, Tag(TEXT_TAG)] | Annotated[TokenIds, Field(min_length=1), Tag(LIST_TAG)],
    Discriminator(text_or_list),
]
Prompt = Annotated[
    Annotated[str, Tag(TEXT_TAG)]
    | Annotated[TokenIds, Field(min_length=1), Tag(LIST_TAG)]
    | Annotated[
        list[OnePrompt],
        Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True),
        Tag(PROMPTS_TAG),
    ],
    Discriminator(prompt_kind),
]
"""A text, token ids, or a list of such."""
