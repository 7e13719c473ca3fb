"""Types of single fields: ids, prompts, stop strings, biases, template arguments.

Owns how a value of JSON becomes one of Python, and where a check ends early: a body may hold
millions of items. Knows no request.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from refectory_server.api.wording import show

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


def prompt_kind(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        return PROMPTS_TAG
    return text_or_list(value)


def _as_bias(value: object) -> object:
    """JSON's keys are strings; here they are token ids. Ends at the first bad one."""
    if not isinstance(value, dict):
        return value
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
StopStrings = Annotated[list[str], Field(fail_fast=True), BeforeValidator(_as_list)]
TemplateKwargs = Annotated[dict[str, Any], AfterValidator(_check_template_kwargs)]
LogitBias = Annotated[dict[int, float], BeforeValidator(_as_bias)]
OnePrompt = Annotated[
    Annotated[str, Tag(TEXT_TAG)] | Annotated[TokenIds, Field(min_length=1), Tag(LIST_TAG)],
    Discriminator(text_or_list),
]
Prompt = Annotated[
    Annotated[str, Tag(TEXT_TAG)]
    | Annotated[TokenIds, Field(min_length=1), Tag(LIST_TAG)]
    | Annotated[list[OnePrompt], Field(max_length=MAX_PROMPTS, fail_fast=True), Tag(PROMPTS_TAG)],
    Discriminator(prompt_kind),
]
"""A text, token ids, or a list of such."""
