"""cgroup limits, version 2 and version 1, nested or not, and what the system says of its CPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from refectory_server.runner.host_limits import (
    cpu_quota,
    host_cpus,
    memory_limit_bytes,
    parse_cpu_list,
)

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
MOUNTS = """\
1 0 0:1 / {0} rw - cgroup2 cgroup2 rw
2 0 0:2 / {0}/cpu rw - cgroup cgroup rw,cpu
3 0 0:3 / {0}/memory rw - cgroup cgroup rw,memory
"""


def write(root: Path, files: dict[str, str]) -> Path:
    """Returns a /proc/self whose process is in the group /pod/me of every hierarchy."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    (root / "cgroup").write_text("2:cpu:/pod/me\n3:memory:/pod/me\n0::/pod/me\n")
    (root / "mountinfo").write_text(MOUNTS.format(root))
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"pod/me/memory.max": "104857600"}, 104857600),
        ({"pod/me/memory.max": "max"}, PHYSICAL),
        ({"pod/me/memory.max": "max", "pod/memory.max": "104857600"}, 104857600),
        ({"pod/me/memory.max": "104857600", "pod/memory.max": "104857601"}, 104857600),
        ({"memory/pod/me/memory.limit_in_bytes": "209715200"}, 209715200),
        ({"memory/memory.limit_in_bytes": "209715200"}, 209715200),
        ({"memory/pod/me/memory.limit_in_bytes": "9223372036854771712"}, PHYSICAL),
        ({"other/memory.max": "104857600"}, PHYSICAL),
        ({}, PHYSICAL),
    ],
)
def test_memory_limit(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert memory_limit_bytes(write(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"pod/me/cpu.max": "50000 100000"}, 0.5),
        ({"pod/me/cpu.max": "max 100000"}, None),
        ({"pod/me/cpu.max": "max 100000", "pod/cpu.max": "150000 100000"}, 1.5),
        ({"pod/me/cpu.max": "800000 100000", "pod/cpu.max": "25000 10000"}, 2.5),
        ({"cpu/pod/me/cpu.cfs_quota_us": "300000", "cpu/pod/me/cpu.cfs_period_us": "100000"}, 3.0),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3.0),
        ({"cpu/pod/me/cpu.cfs_quota_us": "-1", "cpu/pod/me/cpu.cfs_period_us": "100000"}, None),
        ({"other/cpu.max": "50000 100000"}, None),
        ({}, None),
    ],
)
def test_cpu_quota(tmp_path: Path, files: dict[str, str], expected: float | None) -> None:
    assert cpu_quota(write(tmp_path, files)) == expected


def test_the_system_tells_siblings_and_nodes(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    files = {
        f"sys/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu},{cpu + 64}",
        "sys/node/node0/cpulist": "1000-1001",
        "sys/node/node3/cpulist": f"{cpu}",
    }
    host = host_cpus(write(tmp_path, files), tmp_path / "sys")
    assert host.cpus == os.sched_getaffinity(0)
    assert (host.core_of[cpu], host.node_of[cpu]) == (cpu, 3)
    # Of the others nothing is told.
    others = {other: other for other in host.cpus - {cpu}}
    assert {other: host.core_of[other] for other in others} == others
    assert {host.node_of[other] for other in others} <= {0}


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("0-0,2", {0, 2})]
)
def test_lists_of_cpus(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus
