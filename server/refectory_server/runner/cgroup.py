"""Which folders hold the limits of this process's control groups, version 1 and version 2.

Knows no controller's files. A limit binds everything below it, so the groups above the process's
own count too, as far up as they are mounted here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PROC = Path("/proc/self")
_VERSION_2 = ""
"""What /proc/self/cgroup has in place of a controller's name."""


def cgroup_folders(controller: str, proc: Path = PROC) -> list[Path]:
    """The process's own group first; empty without cgroups.

    controller: such as "cpu"; either version's hierarchy may have it, so both are taken
    Source: cgroups(7), proc_pid_mountinfo(5).
    """
    own_groups = {
        name: PurePosixPath(group)
        for line in _lines(proc / "cgroup")
        for _, names, group in [line.split(":", 2)]
        for name in names.split(",")
    }
    folders: list[Path] = []
    for line in _lines(proc / "mountinfo"):
        mount, _, file_system = line.partition(" - ")
        root, mount_point = (_unescape(field) for field in mount.split(" ")[3:5])
        kind, _, options = file_system.split(" ")[:3]
        name = {"cgroup": controller, "cgroup2": _VERSION_2}.get(kind)
        if name in own_groups and (name == _VERSION_2 or name in options.split(",")):
            folders += _upwards(Path(mount_point), own_groups[name], PurePosixPath(root))
    return folders


def _upwards(mount_point: Path, group: PurePosixPath, root: PurePosixPath) -> Iterator[Path]:
    """The group's folder and those above; only the mount's where the group lies outside of it."""
    below = PurePosixPath()
    if group.is_relative_to(root) and ".." not in group.parts:
        below = group.relative_to(root)
    for folder in (below, *below.parents):
        yield mount_point / folder


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _unescape(text: str) -> str:
    r"""mountinfo writes a blank as \040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
