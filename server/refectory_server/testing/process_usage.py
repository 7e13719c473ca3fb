"""What a process takes of the machine, as Linux counts it in /proc, and whether it is there."""

from __future__ import annotations

import os
from pathlib import Path


def is_alive(pid: int) -> bool:
    try:
        # The state follows the command in parentheses; Z: ended, not yet collected.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Of the threads that it has now, in the kernel too."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
