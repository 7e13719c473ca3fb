"""What this process may use of the machine: memory and processors, cgroup limits included.

Knows no models.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
_MEMORY_FILES = ("memory.max", "memory/memory.limit_in_bytes")
"""cgroup v2, then v1."""


def memory_limit_bytes(cgroup_root: Path = CGROUP_ROOT) -> int:
    """The cgroup's memory limit, or the machine's memory where that is less or no limit is set."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _MEMORY_FILES:
        text = _read(cgroup_root / name)
        if text is not None and text.isdigit():
            return min(int(text), physical)
    return physical


def num_cpus(cgroup_root: Path = CGROUP_ROOT) -> int:
    """Processors this process may run on, or the cgroup's quota rounded up where that is less."""
    available = len(os.sched_getaffinity(0))
    quota = _cpu_quota(cgroup_root)
    return available if quota is None else max(1, min(available, math.ceil(quota)))


def _cpu_quota(cgroup_root: Path) -> float | None:
    fields = (_read(cgroup_root / "cpu.max") or "").split()
    if not fields:
        quota = _read(cgroup_root / "cpu" / "cpu.cfs_quota_us")
        period = _read(cgroup_root / "cpu" / "cpu.cfs_period_us")
        fields = [quota or "", period or ""]
    if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit() and int(fields[1]) > 0:
        return int(fields[0]) / int(fields[1])
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
