"""What a process takes of the machine, as Linux counts it in /proc."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Of all its threads since its start, in the kernel too; in steps of a clock tick (10 ms)."""
    # The fields follow the command in parentheses, which may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user_ticks, system_ticks = int(fields[11]), int(fields[12])
    return (user_ticks + system_ticks) / os.sysconf("SC_CLK_TCK")
