"""JSON objects -> request models, with one-line errors that name the field.

Owns the words for what pydantic found. Does not know HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from refectory_server.api.field_types import LIST_TAG, PROMPTS_TAG, TEXT_TAG
from refectory_server.api.fields import keep_honoured
from refectory_server.api.protocol import GenerationRequest, RequestModel
from refectory_server.api.wording import MAX_SHOWN, show
from refectory_server.errors import InvalidRequest

_ALLOWED = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "int_type": "an integer",
    "list_type": "a list",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "string_type": "a string",
}
"""pydantic's error type -> what would have been right."""

_TAGS = (TEXT_TAG, LIST_TAG, PROMPTS_TAG)

_SUBJECTS = {
    "echoed_logprobs": "echo",
    "needs_logprobs": "top_logprobs",
    "needs_stream": "stream_options",
    "no_continuation": "continue_final_message",
    "not_all": "best_of",
    "one_input": "prompt",
    "template_adds": "add_special_tokens",
    "two_endings": "continue_final_message",
    "two_limits": "max_tokens",
}

Model = TypeVar("Model", bound=RequestModel)
Generation = TypeVar("Generation", bound=GenerationRequest)


def parse_generation(
    request_class: type[Generation], body: Mapping[str, object], *, max_model_len: int
) -> Generation:
    """Raises `InvalidRequest` for a field that is wrong, and for one that would be ignored."""
    honoured = keep_honoured(body, request_class)
    return parse(request_class, honoured, max_model_len=max_model_len)


def parse(request_class: type[Model], body: Mapping[str, object], *, max_model_len: int) -> Model:
    """Raises `InvalidRequest` for the first field that is wrong, by its dotted path."""
    try:
        return request_class.model_validate(body, context={"max_model_len": max_model_len})
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        path = [str(part) for part in details["loc"] if part not in _TAGS]
        message = _message(".".join(path), details)
        raise InvalidRequest(message, field=_field(path, details)) from None


def _message(path: str, details: ErrorDetails) -> str:
    value = show(details["input"])
    context = details.get("ctx", {})
    match details["type"]:
        case "missing":
            return f"{path} is missing"
        case "unknown_field":
            return details["msg"] + (f" (in {path})" if path else "")
        case "not_served":
            return f"{path}.{context['name']} {details['msg']}"
        case "literal_error":
            return f"{path} is {value}; allowed is {context['expected'].replace('False', 'false')}"
        case "greater_than_equal":
            return f"{path} is {value}; the least allowed is {context['ge']}"
        case "less_than_equal":
            return f"{path} is {value}; the most allowed is {context['le']}"
        case "too_short" | "string_too_short":
            return f"{path} is {value}; it must not be empty"
        case "too_long":
            return (
                f"{path} has {context['actual_length']} items; "
                f"at most {context['max_length']} are allowed"
            )
        case "string_too_long":
            return (
                f"{path} has {len(details['input'])} characters; "
                f"at most {context['max_length']} are allowed"
            )
        case "float_type" if type(details["input"]) is int:
            return f"{path} is {value}; it must be a number of at most 1.8e308"
        case kind if kind in _ALLOWED:
            return f"{path} is {value}; it must be {_ALLOWED[kind]}"
        case _:
            return f"{path} {details['msg']}".strip()


def _field(path: list[str], details: ErrorDetails) -> str | None:
    if details["type"] in ("unknown_field", "not_served"):
        path = [*path, details["ctx"]["name"][:MAX_SHOWN]]
    if details["type"] == "needs_messages":
        path = [details["ctx"]["name"]]
    # A check across fields has no path; the field that its message begins with stands for it.
    return ".".join(path) or _SUBJECTS.get(details["type"])
