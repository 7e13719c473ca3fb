"""What this process may use of the machine: memory and processors, cgroup limits included.

Knows no models.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from refectory_server.runner.cgroup import PROC, cgroup_folders
from refectory_server.runner.cpu_placement import HostCpus

SYSTEM = Path("/sys/devices/system")
_MEMORY_FILES = ("memory.max", "memory.limit_in_bytes")
"""cgroup v2, then v1."""


def memory_limit_bytes(proc: Path = PROC) -> int:
    """The lowest limit of the process's cgroups, at most the machine's memory."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    texts = (
        _read(folder / name) for folder in cgroup_folders("memory", proc) for name in _MEMORY_FILES
    )
    return min([physical, *(int(text) for text in texts if text.isdigit())])


def host_cpus(proc: Path = PROC, system: Path = SYSTEM) -> HostCpus:
    """The processors of this process. What the system does not tell is one core a CPU, one node."""
    cpus = frozenset(os.sched_getaffinity(0))
    siblings = {
        cpu: parse_cpu_list(_read(system / f"cpu/cpu{cpu}/topology/thread_siblings_list"))
        for cpu in cpus
    }
    node_of = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in sorted(system.glob("node/node[0-9]*"))
        for cpu in parse_cpu_list(_read(folder / "cpulist"))
    }
    return HostCpus(
        cpus=cpus,
        num_online=os.cpu_count() or len(cpus),
        quota=cpu_quota(proc),
        core_of={cpu: min(siblings[cpu], default=cpu) for cpu in cpus},
        node_of={cpu: node_of.get(cpu, 0) for cpu in cpus},
    )


def cpu_quota(proc: Path = PROC) -> float | None:
    """CPU seconds a second that the process's cgroups allow at most; None: no limit."""
    return min(_quotas(cgroup_folders("cpu", proc)), default=None)


def parse_cpu_list(text: str) -> frozenset[int]:
    """The kernel's list format: "0-3,8"."""
    return frozenset(
        cpu
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", text)
        for cpu in range(int(first), int(last or first) + 1)
    )


def _quotas(folders: Iterable[Path]) -> Iterable[float]:
    for folder in folders:
        names = (folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
        fields = _read(folder / "cpu.max").split() or [_read(name) for name in names]
        if all(field.isdigit() for field in fields) and int(fields[1]) > 0:
            yield int(fields[0]) / int(fields[1])


def _read(path: Path) -> str:
    """What the file says, or nothing."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
