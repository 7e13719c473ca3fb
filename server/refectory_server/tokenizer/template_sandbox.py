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
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from refectory_server.tokenizer.template_budget import (
    Budget,
    current_budget,
    refuse_amplification,
    refuse_oversized_power,
    refuse_oversized_product,
)

MAX_JSON_INDENT = 16


class TemplateRaised(Exception):
    """The template called `raise_exception`."""


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja with the settings and functions that chat templates are written for."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, GenerationBlock],
            finalize=_charge_output,
            cache_size=0,
        )
        for name in ("lipsum", "cycler", "joiner"):
            del self.globals[name]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.filters["tojson"] = _to_json
        self.filters["join"] = _bounded_join
        self.filters["_bounded_loop"] = _bounded_loop
        self.filters["_bounded_concat"] = _bounded_concat
        for name, function in self.filters.items():
            self.filters[name] = _charged(name, function)

    def compile_bounded(self, source: str) -> Template:
        """Compile within a budget: constant expressions are computed here."""
        with _fresh_budget():
            return self.from_string(source)

    def render_bounded(self, template: Template, variables: dict[str, Any]) -> str:
        """Render within a budget."""
        with _fresh_budget():
            return template.render(variables)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        return current_budget.get().join(pieces)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = current_budget.get()
        budget.charge(1)
        # Jinja hands out `str.format` wrapped in its own check.
        method = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(method, "__self__", None)
        budget.charge_value(owner)
        if isinstance(owner, str):
            refuse_amplification(method.__name__, owner, args, kwargs)
        if args and isinstance(__obj, LoopContext):  # a recursive loop goes down
            args = (budget.paid(args[0]), *args[1:])
        elif args and isinstance(owner, str) and method.__name__ == "join":
            args = (budget.paid(args[0], owner),)
        result = super().call(__context, __obj, *args, **kwargs)
        budget.charge_value(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            refuse_oversized_product(left, right)
        elif operator == "**":
            refuse_oversized_power(left, right)
        elif operator == "%" and isinstance(left, str):
            refuse_amplification("format", left, (right,), {})
        result = super().call_binop(context, operator, left, right)
        current_budget.get().charge_value(result)
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


@contextmanager
def _fresh_budget() -> Iterator[None]:
    token = current_budget.set(Budget())
    try:
        yield
    finally:
        current_budget.reset(token)


def _charge_output(value: Any) -> Any:
    """Called by Jinja for each value that is written out."""
    if not isinstance(value, str):
        current_budget.get().charge_tree(value)
    return value


def _bounded_loop(items: Iterable[Any]) -> Iterator[Any]:
    return current_budget.get().paid(items)


def _bounded_concat(pieces: list[Any]) -> str:
    return current_budget.get().join(str(_charge_output(piece)) for piece in pieces)


def _bounded_join(items: Iterable[Any], d: str = "") -> str:
    """Jinja's `join` for one argument; `map(attribute=…)` before it replaces the other."""
    separator = str(d)
    paid = current_budget.get().paid(map(str, items), separator)
    return separator.join(paid)


def _charged(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its arguments checked and its result paid for."""
    num_hidden = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)  # keeps what tells Jinja which hidden argument to pass
    def charged(*args: Any, **kwargs: Any) -> Any:
        budget = current_budget.get()
        budget.charge(1)
        hidden, (value, *rest) = args[:num_hidden], args[num_hidden:]
        budget.charge_value(value)
        refuse_amplification(name, value, rest, kwargs)
        if isinstance(value, Iterator):
            value = budget.paid(value)
        result = function(*hidden, value, *rest, **kwargs)
        budget.charge_value(result)
        return result

    return charged


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
    current_budget.get().charge_tree(value)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
