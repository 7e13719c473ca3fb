"""What one rendering of a chat template may cost.

Owns the count of work and the checks that come before memory is taken. Knows no Jinja syntax.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from jinja2.exceptions import SecurityError

MAX_WORK = 500_000
"""Units for one rendering."""
CHARS_PER_UNIT = 512
ITEMS_PER_UNIT = 8
MAX_CHARS = MAX_WORK * CHARS_PER_UNIT
MAX_WIDTH = 10_000
"""Largest width of a padded text, and length of a repeated one."""

_MAX_INT_BITS = 4096
_TAKE_WIDTH = frozenset(
    ["center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice"]
)
_WIDE_FORMAT = re.compile(
    r"%(\([^)]*\))?[-+ #0-9.]*(\d{5}|\*)"  # %99999d, %*d
    r"|\{[^{}]*:[^{}]*(\d{5}|\{)"  # {:99999}, {:{width}}
)


class Budget:
    """Work left for one rendering."""

    def __init__(self) -> None:
        self._left = MAX_WORK

    def charge(self, units: int) -> None:
        self._left -= units
        if self._left < 0:
            raise SecurityError("the template does too much work (endless loop or oversized text)")

    def charge_value(self, value: Any) -> None:
        """Pay for having read or made `value`."""
        if isinstance(value, str):
            self.charge(len(value) // CHARS_PER_UNIT)
        elif isinstance(value, list | tuple | dict | range):
            self.charge(len(value) // ITEMS_PER_UNIT)
        elif isinstance(value, int) and value.bit_length() > _MAX_INT_BITS:
            raise SecurityError("the template computes an oversized number")

    def charge_tree(self, value: Any) -> None:
        """Pay for writing out `value`, a list or dict with all that is in it."""
        self.charge(1)
        self.charge_value(value)
        if isinstance(value, dict):
            value = [*value.keys(), *value.values()]
        if isinstance(value, list | tuple):
            for item in value:
                self.charge_tree(item)

    def paid(self, items: Iterable[Any], separator: str = "") -> Iterator[Any]:
        """The items, each paid for as it is taken, with the separator that will follow it."""
        for item in items:
            self.charge(1 + len(separator) // CHARS_PER_UNIT)
            self.charge_value(item)
            yield item

    def join(self, pieces: Iterable[str]) -> str:
        """The pieces as one text, paid for before it is made."""
        texts = list(pieces)
        self.charge(sum(map(len, texts)) // CHARS_PER_UNIT)
        return "".join(texts)


current_budget: ContextVar[Budget] = ContextVar("template_budget")
"""Of the rendering in this thread: Jinja hands filters and `concat` no context."""


def refuse_amplification(
    name: str, value: Any, args: Iterable[Any], kwargs: dict[str, Any]
) -> None:
    """Refuse, before the memory is taken, what makes a long text of short ones."""
    arguments = [*args, *kwargs.values()]
    if name in _TAKE_WIDTH and any(_as_int(a) > MAX_WIDTH for a in arguments):
        raise SecurityError(f"a width given to {name} is larger than {MAX_WIDTH}")
    if name in ("format", "format_map") and isinstance(value, str) and _WIDE_FORMAT.search(value):
        raise SecurityError("a width in a format string is too large")
    texts = [a for a in arguments if isinstance(a, str)]
    longest = max(map(len, texts), default=0)
    num_places = 0
    if name == "replace" and texts:
        text = str(value)
        num_places = text.count(texts[0]) if texts[0] else len(text) + 1
    elif name == "indent":
        num_places = str(value).count("\n") + 1
        longest = max([longest, *map(_as_int, arguments)])
    if num_places * longest > MAX_CHARS:
        raise SecurityError(f"{name} would make an oversized text")


def refuse_oversized_product(left: Any, right: Any) -> None:
    """Refuse `text * n` and `items * n` before the memory is taken."""
    for value, times in ((left, right), (right, left)):
        is_oversized = isinstance(value, str | list | tuple) and (
            len(value) * _as_int(times) > MAX_WIDTH
        )
        if is_oversized:
            raise SecurityError("the template multiplies a text or list to an oversized one")


def refuse_oversized_power(base: Any, exponent: Any) -> None:
    num_bits = base.bit_length() if isinstance(base, int) else 0
    if num_bits * max(_as_int(exponent), 1) > _MAX_INT_BITS:
        raise SecurityError("the template computes an oversized number")


def _as_int(value: Any) -> int:
    return value if isinstance(value, int) else 0
