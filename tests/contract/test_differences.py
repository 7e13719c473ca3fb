"""docs/differences-from-vllm.md: its tables of flags are the parser's."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from refectory_server.cli.serve import serve
from refectory_server.cli.vllm_flags import VLLM_FLAGS
from refectory_server.testing.markdown_table import quoted, table_rows

PAGE = (Path(__file__).parents[2] / "docs" / "differences-from-vllm.md").read_text()


def flags(cell: str) -> list[str]:
    return re.findall(r"`(--[a-z0-9-]+)`", cell)


def parser_flags() -> dict[str, click.Option]:
    return {
        flag: param
        for param in serve.params
        if isinstance(param, click.Option)
        for flag in param.opts
        if flag.startswith("--")
    }


WITH_DEFAULT = [
    (flag, row[1])
    for heading in (
        "Flags with vLLM's name and default",
        "Flags with another default",
        "Flags that vLLM does not have",
    )
    for row in table_rows(PAGE, heading)
    for flag in flags(row[0])
]


@pytest.mark.parametrize(("flag", "default"), WITH_DEFAULT)
def test_a_default_is_the_parsers(flag: str, default: str) -> None:
    value = parser_flags()[flag].default
    if default.startswith("none"):
        assert value is None or repr(value) == "Sentinel.UNSET"
    else:
        said = default.strip("`")
        assert said == (str(value).lower() if isinstance(value, bool) else str(value))


def test_flags_without_effect_have_the_values_said() -> None:
    said = {
        flag: quoted(values) or ["any"]
        for cell, values in table_rows(PAGE, "Flags without effect here")
        for flag in flags(cell)
    }
    held = {
        f"--{flag.name}": ["any"] if flag.values is None else [str(v).lower() for v in flag.values]
        for flag in VLLM_FLAGS
    }
    assert said == held


def test_every_flag_is_on_the_page_once_and_absent_ones_are_absent() -> None:
    without_effect = [
        f for row in table_rows(PAGE, "Flags without effect here") for f in flags(row[0])
    ]
    listed = [flag for flag, _ in WITH_DEFAULT] + without_effect
    assert sorted(listed) == sorted(parser_flags())
    absent = [f for row in table_rows(PAGE, "Flags that are absent") for f in flags(row[0])]
    assert len(absent) > 5
    assert not set(absent) & set(parser_flags())
