"""Values and field names in the words of an error message; both may be megabytes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_SHOWN = 60


def show(value: object) -> str:
    """A JSON value on one line, shortened."""
    match value:
        case None:
            text = "null"
        case bool():
            text = "true" if value else "false"
        case str():
            text = repr(value[: MAX_SHOWN + 1])
        case int() if abs(value) >= 10**MAX_SHOWN:
            text = f"an integer of {value.bit_length()} bits"
        case list() | dict() if not value:
            text = repr(value)
        case list() | dict():
            # Not its contents: they may be nested a thousand deep.
            kind = "list" if isinstance(value, list) else "object"
            text = f"{'a' if kind == 'list' else 'an'} {kind} of {len(value)}"
        case _:
            text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def not_served_message(value: object, feature: str, allowed: str) -> str:
    """What follows the name of a field whose value asks for something that is not built."""
    return f"is {show(value)}; this server does not serve {feature} and accepts only {allowed}"


def unknown_field_message(name: str, *known: Iterable[str]) -> str:
    """`known` are groups of names; the nearest one is looked for in each in turn."""
    matches = (difflib.get_close_matches(name[:MAX_SHOWN], group, n=1) for group in known)
    nearest = next((names[0] for names in matches if names), None)
    hint = f"; did you mean {nearest}?" if nearest else ""
    return f"{show(name)} is not a field of this request{hint}"
