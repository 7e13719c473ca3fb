"""constraints.txt against pyproject.toml and against what is installed here.

The file pins what a fresh installation resolves; these tests notice a requirement that was added,
or a version that moved, without `make lock`.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    assert all(len(pair) == 2 for pair in pairs), "every line is a comment or NAME==VERSION"
    return {pair[0]: pair[1] for pair in pairs}


def required(name: str, extras: frozenset[str], seen: set[tuple[str, str]]) -> dict[str, set[str]]:
    """Name -> specifiers of everything that `name[extras]` needs here, however deep.

    What is not installed counts, but what it would need in turn cannot be known.
    """
    found: dict[str, set[str]] = {}
    try:
        requirements = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return found
    for text in requirements:
        requirement = Requirement(text)
        for extra in extras or {""}:
            marker = requirement.marker
            if (marker and not marker.evaluate({"extra": extra})) or (text, extra) in seen:
                continue
            seen.add((text, extra))
            found.setdefault(normalised(requirement.name), set()).add(str(requirement.specifier))
            below = required(requirement.name, frozenset(requirement.extras), seen)
            for key, specifiers in below.items():
                found.setdefault(key, set()).update(specifiers)
    return found


def test_every_requirement_however_deep_is_pinned_within_its_range() -> None:
    pinned = pins()
    needed = required("refectory", frozenset({"dev"}), set())
    del needed["refectory"]
    assert sorted(needed.keys() - pinned.keys()) == []
    outside = {
        name: (pinned[name], specifier)
        for name, specifiers in needed.items()
        for specifier in specifiers
        if Version(pinned[name]) not in Requirement(f"{name}{specifier}").specifier
    }
    assert outside == {}


def test_what_is_installed_is_what_is_pinned() -> None:
    installed = {normalised(d.metadata["Name"]): d.version for d in metadata.distributions()}
    differing = {
        name: (version, installed[name])
        for name, version in pins().items()
        if name in installed and installed[name] != version
    }
    assert differing == {}


def test_the_lock_is_sorted_and_says_nothing_but_versions() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    assert lines == sorted(set(lines), key=lambda line: line.split("==")[0])
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.+]+", line) for line in lines)
