"""The fields of the two generation routes, in three lists.

Honoured: those of the request models. Without effect: accepted for the values that ask for
nothing, which is what the tables below hold. Everything else is refused by name: a field that has
an effect elsewhere is never ignored here. Knows no types of honoured fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from refectory_server.api.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
)
from refectory_server.api.wording import show, unknown_field_message
from refectory_server.errors import InvalidRequest

CHAT_HONOURED = frozenset(ChatCompletionRequest.model_fields)
COMPLETION_HONOURED = frozenset(CompletionRequest.model_fields)


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """Values of a field that change nothing; null is always one of them."""

    accepts: Callable[[object], bool]
    allowed: str
    """Those values in words."""


def _only(*values: object) -> WithoutEffect:
    def accepts(value: object) -> bool:
        return any(_is_same(value, allowed) for allowed in values)

    return WithoutEffect(accepts, " or ".join([*map(show, values), "null"]))


def _any(type_: type, words: str) -> WithoutEffect:
    return WithoutEffect(lambda value: isinstance(value, type_), f"{words} or null")


SHARED_WITHOUT_EFFECT: dict[str, WithoutEffect] = {
    # Bookkeeping of OpenAI's platform.
    "metadata": _any(dict, "any object"),
    "prompt_cache_key": _any(str, "any string"),
    "safety_identifier": _any(str, "any string"),
    "service_tier": _any(str, "any string"),
    "store": _only(False),
    "user": _any(str, "any string"),
    # Sampling at its neutral value.
    "bad_words": _only([]),
    "length_penalty": _only(1),
    "prompt_logprobs": _only(),
    "truncate_prompt_tokens": _only(),
    "typical_p": _only(1),
    "use_beam_search": _only(False),
    # Output in other forms.
    "echo": _only(False),
    "guided_choice": _only(),
    "guided_grammar": _only(),
    "guided_json": _only(),
    "guided_regex": _only(),
    "response_format": _only({"type": "text"}),
    "return_token_ids": _only(False),
    "spaces_between_special_tokens": _only(True),
    "structured_outputs": _only(),
}

CHAT_WITHOUT_EFFECT: dict[str, WithoutEffect] = SHARED_WITHOUT_EFFECT | {
    "add_special_tokens": _only(False),
    "audio": _only(),
    "chat_template": _only(),
    "documents": _only([]),
    "function_call": _only("none", "auto"),
    "functions": _only([]),
    "include_reasoning": _any(bool, "true or false"),
    "modalities": _only(["text"]),
    "parallel_tool_calls": _any(bool, "true or false"),
    "prediction": _only(),
    "reasoning_effort": _only("none"),
    "tool_choice": _only("none", "auto"),
    "tools": _only([]),
    "verbosity": _only("medium"),
    "web_search_options": _only(),
}

COMPLETION_WITHOUT_EFFECT: dict[str, WithoutEffect] = SHARED_WITHOUT_EFFECT | {
    "add_special_tokens": _only(True),
    "suffix": _only(""),
}


def keep_honoured(
    body: Mapping[str, object], request_class: type[GenerationRequest]
) -> dict[str, object]:
    """The honoured part of `body`. Raises `InvalidRequest` for anything that would be ignored."""
    is_chat = issubclass(request_class, ChatCompletionRequest)
    without_effect = CHAT_WITHOUT_EFFECT if is_chat else COMPLETION_WITHOUT_EFFECT
    honoured = {}
    for name, value in body.items():
        if name in request_class.model_fields:
            honoured[name] = value
        elif name not in without_effect:
            raise InvalidRequest(
                unknown_field_message(name, request_class.model_fields, without_effect),
                field=name,
            )
        elif value is not None and not without_effect[name].accepts(value):
            raise InvalidRequest(
                f"{name} is {show(value)}; this server accepts only {without_effect[name].allowed}",
                field=name,
            )
    return honoured


def _is_same(value: object, allowed: object) -> bool:
    """Equal as JSON: 1 and 1.0 are the same, 1 and true are not."""
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)
