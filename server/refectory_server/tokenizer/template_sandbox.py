"""The Jinja environment that chat templates run in.

A template comes with a model, so it is foreign code: it reaches no Python attributes, changes no
value it was given, and has a budget of work. Loop turns and calls cost a unit each, texts and lists
by their length, so endless loops and growing texts end in an error. Knows no chats.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_WORK = 2_000_000
"""Units for one rendering."""
CHARS_PER_UNIT = 256
ITEMS_PER_UNIT = 8
MAX_CHARS = MAX_WORK * CHARS_PER_UNIT
MAX_WIDTH = 10_000
MAX_JSON_INDENT = 16

_MAX_INT_BITS = 4096
_TAKE_WIDTH = frozenset(
    ["center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice"]
)
_WIDE_FORMAT = re.compile(
    r"%(\([^)]*\))?[-+ #0-9.]*(\d{5}|\*)"  # %99999d, %*d
    r"|\{[^{}]*:[^{}]*(\d{5}|\{)"  # {:99999}, {:{width}}
)


class TemplateRaised(Exception):
    """The template called `raise_exception`."""


class _Budget:
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


_budget: ContextVar[_Budget] = ContextVar("template_budget")
"""Of the rendering in this thread. Filters and `concat` get no other handle on it."""


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja with the settings and functions that chat templates are written for."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, GenerationBlock],
            cache_size=0,
        )
        for name in ("lipsum", "cycler", "joiner"):
            del self.globals[name]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.filters["tojson"] = _to_json
        self.filters["_bounded_loop"] = _bounded_loop
        self.filters["_bounded_concat"] = _bounded_concat
        for name, function in self.filters.items():
            self.filters[name] = _charged(name, function)

    def render_bounded(self, source: Any, variables: dict[str, Any]) -> str:
        """Render a compiled template within a fresh budget."""
        token = _budget.set(_Budget())
        try:
            return str(source.render(variables))
        finally:
            _budget.reset(token)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        text = "".join(pieces)
        _budget.get().charge_value(text)
        return text

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _budget.get()
        budget.charge(1)
        if isinstance(__obj, LoopContext) and args:  # a recursive loop goes down
            args = (_bounded_loop(args[0]), *args[1:])
        # Jinja hands out `str.format` wrapped in its own check.
        method = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(method, "__self__", None)
        budget.charge_value(owner)
        if isinstance(owner, str):
            _refuse_amplification(method.__name__, owner, args, kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        budget.charge_value(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _check_product(left, right)
        elif operator == "**" and _bits(left) * max(_as_int(right), 1) > _MAX_INT_BITS:
            raise SecurityError("the template computes an oversized number")
        elif operator == "%" and isinstance(left, str):
            _refuse_amplification("format", left, (right,), {})
        result = super().call_binop(context, operator, left, right)
        _budget.get().charge_value(result)
        return result

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Every loop takes its items through the budget, every `~` its result."""
        template = super()._parse(source, name, filename)
        for loop in list(template.find_all(nodes.For)):
            loop.iter = _filter_node("_bounded_loop", loop.iter, loop.lineno)
        _replace_concats(template)
        template.set_environment(self)
        return template


class GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's part for training: its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _filter_node(name: str, value: nodes.Node, lineno: int) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=lineno)


def _replace_concats(node: nodes.Node) -> None:
    for field, value in list(node.iter_fields()):
        if isinstance(value, nodes.Node):
            setattr(node, field, _without_concat(value))
        elif isinstance(value, list):
            value[:] = [_without_concat(v) if isinstance(v, nodes.Node) else v for v in value]


def _without_concat(node: nodes.Node) -> nodes.Node:
    _replace_concats(node)
    if isinstance(node, nodes.Concat):
        pieces = nodes.List(node.nodes, lineno=node.lineno)
        return _filter_node("_bounded_concat", pieces, node.lineno)
    return node


def _bounded_loop(items: Iterable[Any]) -> Iterator[Any]:
    budget = _budget.get()
    for item in items:
        budget.charge(1)
        yield item


def _bounded_concat(pieces: list[Any]) -> str:
    return "".join(map(str, pieces))


def _charged(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its arguments checked and its result paid for."""
    num_hidden = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)  # keeps what tells Jinja which hidden argument to pass
    def charged(*args: Any, **kwargs: Any) -> Any:
        budget = _budget.get()
        budget.charge(1)
        hidden, (value, *rest) = args[:num_hidden], args[num_hidden:]
        budget.charge_value(value)
        _refuse_amplification(name, value, rest, kwargs)
        if isinstance(value, Iterator):
            value = _bounded_loop(value)
        result = function(*hidden, value, *rest, **kwargs)
        budget.charge_value(result)
        return result

    return charged


def _refuse_amplification(
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
    elif name == "join":
        # The method is called on the separator, the filter on the items.
        items = arguments[0] if isinstance(value, str) and arguments and not texts else value
        longest = max(longest, len(value) if isinstance(value, str) else 0)
        num_places = len(items) if hasattr(items, "__len__") else MAX_WIDTH
    elif name == "indent":
        num_places = str(value).count("\n") + 1
        longest = max([longest, *map(_as_int, arguments)])
    if num_places * longest > MAX_CHARS:
        raise SecurityError(f"{name} would make an oversized text")


def _check_product(left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        is_oversized = isinstance(value, str | list | tuple) and (
            len(value) * _as_int(times) > MAX_WORK
        )
        if is_oversized:
            raise SecurityError("the template multiplies a text or list to an oversized one")


def _as_int(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRaised(message)


def _strftime_now(format: str) -> str:  # noqa: A002 - the name templates may use as a keyword
    if re.search(r"%\W*\d", format):
        raise SecurityError("strftime_now takes no field widths")
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as the models were trained on it: no HTML escapes, unlike Jinja's own filter."""
    if indent is not None and indent > MAX_JSON_INDENT:
        raise SecurityError(f"tojson's indent is {indent}; at most {MAX_JSON_INDENT} is allowed")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
