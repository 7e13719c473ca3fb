"""CI's rule on skips (tests/conftest.py), tried on small test trees in a pytest of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

SKIPS_ITSELF = """
import pytest

{mark}
def test_it():
    pytest.skip("no device")
"""

SKIPPED_MODULE = """
import pytest

pytest.skip("no library", allow_module_level=True)
"""

XFAIL = """
import pytest

@pytest.mark.xfail(reason="known", strict=True)
def test_it():
    assert 1 == 2
"""


def closing_line(tmp_path: Path, file: str, source: str, *, ci: bool) -> str:
    """Run one test file under a copy of the root conftest; returns pytest's last line."""
    target = tmp_path / "tests" / file
    target.parent.mkdir(parents=True)
    target.write_text(source)
    shutil.copy(TESTS / "conftest.py", tmp_path / "tests")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  gpu\n  cluster\n")
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "--import-mode=importlib", "tests"],
        cwd=tmp_path,
        env=environment | ({"CI": "true"} if ci else {}),
        capture_output=True,
        text=True,
    )
    last = done.stdout.splitlines()[-1].partition(" in ")[0]
    assert (done.returncode != 0) == bool(re.search(r"\d (failed|error)", last))
    return last


@pytest.mark.parametrize(
    ("file", "mark", "in_ci"),
    [
        ("kernels/test_a.py", "", "1 failed"),
        ("kernels/test_a.py", "@pytest.mark.gpu", "1 skipped"),
        ("server/test_a.py", "", "1 skipped"),
        ("server/test_a.py", "@pytest.mark.cluster", "1 failed"),
    ],
)
def test_a_skip_fails_only_where_ci_must_run_it(
    tmp_path: Path, file: str, mark: str, in_ci: str
) -> None:
    source = SKIPS_ITSELF.format(mark=mark)
    assert closing_line(tmp_path / "ci", file, source, ci=True) == in_ci
    assert closing_line(tmp_path / "here", file, source, ci=False) == "1 skipped"


def test_a_kernel_module_that_skips_itself_fails_too(tmp_path: Path) -> None:
    assert closing_line(tmp_path, "kernels/test_a.py", SKIPPED_MODULE, ci=True) == "1 error"


def test_an_expected_failure_is_no_skip(tmp_path: Path) -> None:
    assert closing_line(tmp_path, "kernels/test_a.py", XFAIL, ci=True) == "1 xfailed"
