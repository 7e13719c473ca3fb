"""Where the limits of this process's cgroups are: versions, namespaces, nested groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from refectory_server.runner.cgroup import cgroup_folders

V1 = "31 23 0:28 {} {} rw,relatime shared:4 - cgroup cgroup rw,cpu,cpuacct"
V1_MEMORY = "35 31 0:32 {} {} rw,relatime - cgroup cgroup rw,memory"
V2 = "31 23 0:28 {} {} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
OTHER = "22 28 0:21 / /proc rw,nosuid - proc proc rw"


def folders(tmp_path: Path, own_groups: str, *mounts: str) -> list[str]:
    (tmp_path / "cgroup").write_text(own_groups + "\n")
    (tmp_path / "mountinfo").write_text("\n".join((OTHER, *mounts)) + "\n")
    return [str(folder) for folder in cgroup_folders("cpu", tmp_path)]


@pytest.mark.parametrize(
    ("own_groups", "mount", "expected"),
    [
        # A container with a cgroup namespace: its own group is the root that it sees.
        ("0::/", V2.format("/", "/cg"), ["/cg"]),
        # A service of the machine: its slice's limit counts too.
        ("0::/a.slice/b", V2.format("/", "/cg"), ["/cg/a.slice/b", "/cg/a.slice", "/cg"]),
        ("5:cpu,cpuacct:/pod/me", V1.format("/", "/cg"), ["/cg/pod/me", "/cg/pod", "/cg"]),
        # A container without a namespace: its group alone is mounted, by the name it has outside.
        ("5:cpu:/pod/me", V1.format("/pod/me", "/cg"), ["/cg"]),
        ("5:cpu:/pod/me/sub", V1.format("/pod/me", "/cg"), ["/cg/sub", "/cg"]),
        # Outside of what is mounted here.
        ("0::/../other", V2.format("/", "/cg"), ["/cg"]),
        ("0::/other", V2.format("/pod/me", "/cg"), ["/cg"]),
        # Another controller's hierarchy.
        ("5:cpu:/pod\n4:memory:/pod", V1_MEMORY.format("/", "/cg"), []),
        ("4:memory:/pod", V1.format("/", "/cg"), []),
        # Names that mountinfo escapes.
        ("0::/a\\x2db.slice", V2.format(r"/a\134x2db.slice", r"/c\040g"), ["/c g"]),
    ],
)
def test_folders(tmp_path: Path, own_groups: str, mount: str, expected: list[str]) -> None:
    assert folders(tmp_path, own_groups, mount) == expected


def test_both_versions_may_have_the_controller(tmp_path: Path) -> None:
    found = folders(
        tmp_path, "5:cpu:/one\n4:memory:/x\n0::/two", V1.format("/", "/cg/cpu"),
        V1_MEMORY.format("/", "/cg/memory"), V2.format("/", "/cg/unified"),
    )  # fmt: skip
    assert found == ["/cg/cpu/one", "/cg/cpu", "/cg/unified/two", "/cg/unified"]


def test_a_system_without_cgroups_has_none(tmp_path: Path) -> None:
    assert cgroup_folders("cpu", tmp_path / "nothing") == []
