"""docs/benchmarks.md shows every result that is kept, as the table writer writes it."""

from __future__ import annotations

from pathlib import Path

from side_by_side.report import read_report
from side_by_side.table import markdown

DOCS = Path(__file__).parents[2] / "docs"


def test_every_kept_result_is_in_the_page() -> None:
    page = (DOCS / "benchmarks.md").read_text()
    results = sorted((DOCS / "benchmarks").glob("*.json"))
    missing = [path.name for path in results if markdown(read_report(path)) not in page]
    assert missing == []
