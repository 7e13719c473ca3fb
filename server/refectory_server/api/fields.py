"""The fields of the two generation routes, in three lists.

Honoured: those of the request models. Without effect: accepted for the values that ask for
nothing, which is what the tables below hold. Everything else is refused by name: a field that has
an effect elsewhere is never ignored here. Knows no types of honoured fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from refectory_server.api.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
)
from refectory_server.api.wording import not_served_message, show, unknown_field_message
from refectory_server.errors import InvalidRequest

CHAT_HONOURED = frozenset(ChatCompletionRequest.model_fields)
COMPLETION_HONOURED = frozenset(CompletionRequest.model_fields)


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """Values of a field that change nothing; null is always one of them."""

    accepts: Callable[[object], bool]
    refusal: Callable[[object], str]
    """What is said of any other value, after the field's name."""
    json_schema: dict[str, object]


def _only(feature: str, *values: object) -> WithoutEffect:
    """`feature`: what any other value asks for."""
    allowed = " or ".join(map(json.dumps, [*values, None]))
    return WithoutEffect(
        lambda value: any(_is_same(value, one) for one in values),
        lambda value: not_served_message(value, feature, allowed),
        {"enum": [*values, None]},
    )


def _any(json_type: str) -> WithoutEffect:
    python_type = {"boolean": bool, "object": dict, "string": str}[json_type]
    return WithoutEffect(
        lambda value: isinstance(value, python_type),
        lambda value: f"is {show(value)}; this server accepts only any {json_type} or null",
        {"type": [json_type, "null"]},
    )


SHARED_WITHOUT_EFFECT: dict[str, WithoutEffect] = {
    # Bookkeeping of OpenAI's platform.
    "metadata": _any("object"),
    "prompt_cache_key": _any("string"),
    "safety_identifier": _any("string"),
    "service_tier": _any("string"),
    "store": _only("stored completions", False),
    "user": _any("string"),
    # Sampling at its neutral value.
    "length_penalty": _only("beam search", 1),
    "prompt_logprobs": _only("log-probabilities of the prompt"),
    "truncate_prompt_tokens": _only("truncation of prompts"),
    "typical_p": _only("typical sampling", 1),
    "use_beam_search": _only("beam search", False),
    # Output in other forms.
    "guided_choice": _only("structured output"),
    "guided_grammar": _only("structured output"),
    "guided_json": _only("structured output"),
    "guided_regex": _only("structured output"),
    "response_format": _only("structured output", {"type": "text"}),
    "return_token_ids": _only("token ids in answers", False),
    "spaces_between_special_tokens": _only("special tokens without spaces between them", True),
    "structured_outputs": _only("structured output"),
}

CHAT_WITHOUT_EFFECT: dict[str, WithoutEffect] = SHARED_WITHOUT_EFFECT | {
    "add_special_tokens": _only("special tokens around the template's text", False),
    "audio": _only("audio"),
    "chat_template": _only("a request's own template"),
    "echo": _only("an echo of the last message", False),
    "documents": _only("documents", []),
    "function_call": _only("tool calls", "none", "auto"),
    "functions": _only("tool calls", []),
    "include_reasoning": _any("boolean"),
    "modalities": _only("output other than text", ["text"]),
    "parallel_tool_calls": _any("boolean"),
    "prediction": _only("predicted output"),
    "reasoning_effort": _only("reasoning", "none"),
    "tool_choice": _only("tool calls", "none", "auto"),
    "tools": _only("tool calls", []),
    "verbosity": _only("verbosity", "medium"),
    "web_search_options": _only("web search"),
}

COMPLETION_WITHOUT_EFFECT: dict[str, WithoutEffect] = SHARED_WITHOUT_EFFECT | {
    "add_special_tokens": _only("prompts without special tokens", True),
    "suffix": _only("text before a suffix", ""),
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
            raise InvalidRequest(f"{name} {without_effect[name].refusal(value)}", field=name)
    return honoured


def _is_same(value: object, allowed: object) -> bool:
    """Equal as JSON: 1 and 1.0 are the same, 1 and true are not."""
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)
