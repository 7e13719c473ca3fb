"""`--config FILE`: the command line's options from a YAML file.

Owns reading and checking the file. What it gives are defaults: an environment variable or a flag
wins over it.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import click
import yaml

from refectory_server.cli.options import GroupedOption


def _set_defaults(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None and not ctx.resilient_parsing:
        ctx.default_map = _read(value, [p for p in ctx.command.get_params(ctx) if p.name])


def _read(path: str, params: list[click.Parameter]) -> dict[str, Any]:
    """Parameter name -> value. Raises `click.BadParameter` that names file and key."""
    try:
        content = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(f"cannot read {path}: {error}") from error
    except yaml.YAMLError as error:
        raise _bad(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise _bad(f"{path} holds a {type(content).__name__}; allowed is a map of flag to value")
    known = {_key(param): param for param in params}
    settable = {key for key, param in known.items() if _is_settable(param)}
    values = {}
    for key, value in content.items():
        name = str(key).replace("_", "-")
        if name in settable:
            values[str(known[name].name)] = _as_text(path, str(key), value, known[name])
        elif name in known:
            raise _bad(f"{path}: {key} cannot be set in a file, only on the command line")
        else:
            near = difflib.get_close_matches(name, settable, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise _bad(f"{path}: there is no flag {key}{hint}")
    return values


def _key(param: click.Parameter) -> str:
    """As the command line spells it, which need not be what the program calls it."""
    long = [flag for flag in param.opts if flag.startswith("--")]
    return long[0].removeprefix("--") if long else str(param.name)


def _is_settable(param: click.Parameter) -> bool:
    """Not `--check`, `--config` and `--help`, which say what to do and not how."""
    return isinstance(param, click.Argument | GroupedOption)


def _as_text(path: str, key: str, value: Any, param: click.Parameter) -> Any:
    """The value as the command line would spell it, so that one parser checks both."""
    if value is None:
        raise _bad(f"{path}: {key} has no value; leave the key out for the default")
    if isinstance(value, list) and getattr(param, "multiple", False):
        return [str(item) for item in value]
    if isinstance(value, list | dict):
        raise _bad(f"{path}: {key} is a {type(value).__name__}; allowed is one value")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return [text] if getattr(param, "multiple", False) else text


def _bad(message: str) -> click.BadParameter:
    return click.BadParameter(message, param_hint="--config")


config_file_option = click.option(
    "--config",
    metavar="FILE",
    envvar="REFECTORY_CONFIG",
    is_eager=True,  # so that the other options find their defaults
    expose_value=False,
    callback=_set_defaults,
    help="YAML file of options, named as the flags are; flags and environment win over it.",
)
"""Decorator: adds `--config` to a command."""
