"""The tables of a page, for tests that hold it to the code."""

from __future__ import annotations

import itertools
import re


def table_rows(page: str, heading: str, *, table: int = 0) -> list[list[str]]:
    """The cells of a table under a heading of any level, the table's own head left out.

    `table` counts from 0 to the next heading. Raises `ValueError` where there is no such heading.
    """
    parts = re.split(rf"^#+ {re.escape(heading)}\n", page, flags=re.M)
    if len(parts) != 2:
        raise ValueError(f"{len(parts) - 1} headings read {heading!r}; there must be one")
    section = re.split(r"^#+ ", parts[1], maxsplit=1, flags=re.M)[0]
    groups = itertools.groupby(section.splitlines(), key=lambda line: line.startswith("|"))
    tables = [list(lines) for is_table, lines in groups if is_table]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[table][2:]]


def quoted(cell: str) -> list[str]:
    """What stands between backticks in a cell."""
    return re.findall(r"`([^`]+)`", cell)
