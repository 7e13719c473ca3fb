"""Guards on the tree itself: names that would shadow real modules, sizes, and what may be written.

`operator` is a standard library module and `kernels` a real distribution, and folders here bear
both names; see the failures that each rule prevents in its test.
"""

from __future__ import annotations

import importlib.util
import operator
import re
import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMPONENTS = ("charts", "crds", "e2e", "kernels", "operator", "server")

MAX_LINES = 350
LONGER_FOR_A_REASON: dict[str, str] = {}
"""Path -> why this file may exceed MAX_LINES."""

TEXT_SUFFIXES = {
    "", ".cfg", ".cmake", ".cpp", ".h", ".json", ".md", ".py", ".sh", ".toml", ".txt", ".yaml",
    ".yml",
}  # fmt: skip
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|opt|tmp|home|Users)/\w")
REGISTRY_HOST = re.compile(r"pypi\.org|pythonhosted|crates\.io|npmjs|deb\.debian|download\.pytorch")


def tracked_files() -> list[Path]:
    """The files git knows, and those it would take: everything but what it ignores."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [path for name in listing.split("\0") if name and (path := ROOT / name).is_file()]


def python_sources() -> list[Path]:
    return [
        path
        for path in tracked_files()
        if path.suffix == ".py" and not path.is_relative_to(ROOT / "tests")
    ]


def test_operator_is_the_standard_librarys() -> None:
    assert operator.__file__ is not None
    assert Path(operator.__file__).parent == Path(sysconfig.get_path("stdlib"))


def test_kernels_is_not_our_folder() -> None:
    """transformers probes for a distribution `kernels`: our folder must not be on the path."""
    spec = importlib.util.find_spec("kernels")
    assert spec is None or "site-packages" in str(spec.origin)


def test_component_folders_and_tests_are_no_packages() -> None:
    """`operator/__init__.py` would shadow the standard library's module where the repo is on the
    path; below tests/ it would give two test files of one name the same module."""
    found = [folder for folder in COMPONENTS if (ROOT / folder / "__init__.py").exists()]
    found += [str(path) for path in (ROOT / "tests").rglob("__init__.py")]
    assert found == []


def test_no_other_folder_is_called_operator() -> None:
    folders = {parent for path in tracked_files() for parent in path.relative_to(ROOT).parents}
    assert [str(path) for path in folders if path.name == "operator"] == ["operator"]


def test_source_files_are_short() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python_sources()
    }
    too_long = {
        name: length
        for name, length in lengths.items()
        if length > MAX_LINES and name not in LONGER_FOR_A_REASON
    }
    assert too_long == {}
    short_again = [name for name in LONGER_FOR_A_REASON if lengths.get(name, 0) <= MAX_LINES]
    assert short_again == []


def test_no_machine_path_and_no_registry_host_is_written_down() -> None:
    found = []
    for path in tracked_files():
        if path.suffix not in TEXT_SUFFIXES or path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if MACHINE_PATH.search(line) or REGISTRY_HOST.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []
