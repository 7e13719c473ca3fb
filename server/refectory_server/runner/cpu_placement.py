"""How many threads compute, and on which CPUs: pure functions of what the process may use.

One thread a physical core, since two on one core share its vector units and its caches. Threads
are bound only in a cpuset of their own. Where CPUs are shared, two pods that count from the first
one would bind to the same, and a thread that waits for its CPU holds up all the others.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCpus:
    """The processors that this process may use."""

    cpus: frozenset[int]
    """The affinity mask."""
    num_online: int
    """Of the machine."""
    quota: float | None
    """CPU seconds a second that the cgroups allow; None: no limit."""
    core_of: Mapping[int, int]
    """Physical core by CPU; SMT siblings have the same one."""
    node_of: Mapping[int, int]
    """NUMA node by CPU."""

    @property
    def num_cores(self) -> int:
        return len({self.core_of[cpu] for cpu in self.cpus})

    @property
    def is_exclusive(self) -> bool:
        """Whether the CPUs seem to be ours alone: a part of the machine's, and all of their time.

        Such as those of a pod with whole CPUs on a node whose CPU manager is static.
        """
        return len(self.cpus) < self.num_online and (
            self.quota is None or self.quota >= len(self.cpus)
        )


@dataclass(frozen=True, slots=True)
class CpuPlacement:
    """Where the computing threads run, and where everything else should."""

    threads: tuple[int | None, ...]
    """One entry a thread: the CPU it is bound to, or None; all are bound or none is."""
    spare_cpus: tuple[int, ...] = ()
    """What bound threads leave to the API process, ascending; empty: it may run anywhere."""

    def __str__(self) -> str:
        noun = "thread" if len(self.threads) == 1 else "threads"
        bound = [cpu for cpu in self.threads if cpu is not None]
        where = f"on CPUs {format_cpu_list(bound)}" if bound else "not bound to CPUs"
        return f"{len(self.threads)} {noun} {where}"


def default_num_threads(host: HostCpus) -> int:
    """One a physical core, and no more than the quota has whole CPUs.

    With more, the threads would use up the quota early in every period (100 ms) and all stand still
    for the rest of it, in the middle of a step.
    """
    quota = host.num_cores if host.quota is None else int(host.quota)
    return max(1, min(host.num_cores, quota))


def place_threads(host: HostCpus, num_threads: int | None = None) -> CpuPlacement:
    """Place `num_threads`; None: `default_num_threads`.

    Raises `ValueError`, which names the range, for more than there are CPUs.
    """
    if num_threads is None:
        num_threads = default_num_threads(host)
    if not 1 <= num_threads <= len(host.cpus):
        raise ValueError(f"{num_threads}; allowed is [1, {len(host.cpus)}], the CPUs there are")
    threads = _in_order(host)[:num_threads]
    spare = _spare_cpus(host, threads)
    if not host.is_exclusive or not spare:
        return CpuPlacement((None,) * num_threads)
    return CpuPlacement(tuple(threads), spare)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The kernel's list format: "0-3,8"."""
    runs = itertools.groupby(enumerate(sorted(cpus)), lambda pair: pair[1] - pair[0])
    ends = [[cpu for _, cpu in run] for _, run in runs]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ends)


def _in_order(host: HostCpus) -> list[int]:
    """Every core's first CPU before any sibling; within that the largest node first."""
    num_earlier: Counter[int] = Counter()
    rank: dict[int, int] = {}
    """How many siblings come before it."""
    for cpu in sorted(host.cpus):
        rank[cpu] = num_earlier[host.core_of[cpu]]
        num_earlier[host.core_of[cpu]] += 1
    cores_on = Counter(host.node_of[cpu] for cpu in host.cpus if rank[cpu] == 0)

    def key(cpu: int) -> tuple[int, int, int, int]:
        node = host.node_of[cpu]
        return rank[cpu], -cores_on[node], node, cpu

    return sorted(host.cpus, key=key)


def _spare_cpus(host: HostCpus, threads: Iterable[int]) -> tuple[int, ...]:
    """Those of idle cores; siblings of computing ones where there are no others."""
    busy_cores = {host.core_of[cpu] for cpu in threads}
    idle = [cpu for cpu in host.cpus if host.core_of[cpu] not in busy_cores]
    return tuple(sorted(idle or host.cpus - set(threads)))
