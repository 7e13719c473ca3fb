"""cgroup limits, version 2 and version 1, and the machine's own numbers without them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from refectory_server.runner.host_limits import memory_limit_bytes, num_cpus

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
AVAILABLE = len(os.sched_getaffinity(0))


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.max": "104857600"}, 104857600),
        ({"memory.max": "max"}, PHYSICAL),
        ({"memory/memory.limit_in_bytes": "209715200"}, 209715200),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, PHYSICAL),
        ({}, PHYSICAL),
    ],
)
def test_memory_limit(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert memory_limit_bytes(write(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": f"{AVAILABLE * 100_000 - 1} 100000"}, AVAILABLE),
        ({"cpu.max": "99900000 100000"}, AVAILABLE),
        ({"cpu.max": "max 100000"}, AVAILABLE),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, AVAILABLE),
        ({}, AVAILABLE),
    ],
)
def test_num_cpus(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert num_cpus(write(tmp_path, files)) == expected
