"""Command line options made from the fields of the config groups.

Owns the mapping field -> click option: names, types, environment variables, help by group. Knows
none of the fields themselves.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable
from typing import Any

import click

from refectory_server.config import flag_name

ENVIRONMENT_PREFIX = "REFECTORY_"
_MULTIPLIERS = {
    "k": 1000, "m": 1000**2, "g": 1000**3,
    "K": 1024, "M": 1024**2, "G": 1024**3, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3,
}  # fmt: skip


class SizeType(click.ParamType[int]):
    """A whole number, with vLLM's suffixes: 32k = 32,000 and 32K = 32,768."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        # Not more digits than Python reads at once; their value is the config's to judge.
        match = re.fullmatch(r"(-?\d{1,999})(k|m|g|K|M|G|Ki|Mi|Gi)?", value.strip())
        if match is None:
            self.fail(f"{value!r} is not a whole number such as 4096, 4k (4,000) or 4K (4,096)")
        return int(match[1]) * _MULTIPLIERS.get(match[2] or "", 1)


class GroupedOption(click.Option):
    """An option that knows its heading in the help, and its config field."""

    def __init__(self, *args: Any, group: str = "", field_name: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group
        self.field_name = field_name


class GroupedCommand(click.Command):
    """A command whose `--help` lists options under their groups; `--help=GROUP` shows one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._spread_lists(args))

    def _spread_lists(self, args: list[str]) -> list[str]:
        """vLLM's `--api-key a b` as `--api-key a --api-key b`, for options that may be repeated.

        As there, such a list takes every word up to the next flag.
        """
        names = {o for p in self.params if getattr(p, "multiple", False) for o in p.opts}
        spread: list[str] = []
        listing: str | None = None
        for arg in args:
            if arg.startswith("-"):
                listing = arg.replace("_", "-")
                spread.append(arg)
            elif listing in names:
                spread += [arg] if spread[-1].replace("_", "-") == listing else [listing, arg]
            else:
                spread.append(arg)
        return spread

    def get_help_option(self, ctx: click.Context) -> click.Option:
        def show(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
            if value is None or ctx.resilient_parsing:
                return
            groups = self._groups(ctx)
            if value != "all" and value not in groups:
                raise click.BadParameter(f"{value!r} is none of {', '.join(groups)}, all", ctx)
            ctx.meta["help_group"] = value
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

        return click.Option(
            ["--help", "-h"],
            is_flag=False,
            flag_value="all",
            metavar="[GROUP]",
            expose_value=False,
            is_eager=True,
            callback=show,
            help="Show this message, or one group of it, and exit.",
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        wanted = ctx.meta.get("help_group", "all")
        for group, records in self._groups(ctx).items():
            if wanted in ("all", group):
                with formatter.section(f"{group} options"):
                    formatter.write_dl(records)

    def _groups(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                group = param.group if isinstance(param, GroupedOption) else "general"
                groups.setdefault(group, []).append(record)
        return groups


def config_options(
    config_class: type, group: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: one option for each field of `config_class` declared with `config.option`."""
    hints = typing.get_type_hints(config_class)
    fields = [f for f in dataclasses.fields(config_class) if f.metadata]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for f in reversed(fields):
            function = _option(f, hints[f.name], group)(function)
        return function

    return decorate


def _option(f: dataclasses.Field[Any], hint: Any, group: str) -> Callable[..., Any]:
    flag = flag_name(f.name)
    kind, multiple = _kind(hint)
    declaration = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    return click.option(
        declaration,
        f.name,
        cls=GroupedOption,
        group=group,
        field_name=f.name,
        type=kind,
        multiple=multiple,
        default=None if multiple else f.default,
        show_default=f.default is not None and not multiple,
        envvar=ENVIRONMENT_PREFIX + f.name.upper(),
        help=f.metadata["help"],
        metavar=f.metadata["metavar"],
    )


def _kind(hint: Any) -> tuple[Any, bool]:
    """The click type for a field's type, and whether the option may be repeated."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (arg for arg in typing.get_args(hint) if arg is not types.NoneType)
        return _kind(inner)
    if origin is tuple:
        return _kind(typing.get_args(hint)[0])[0], True
    if origin is typing.Literal:
        values = typing.get_args(hint)
        return click.Choice(values), False
    if hint is int:
        return SizeType(), False
    return {float: click.FLOAT, str: click.STRING, bool: bool}[hint], False
