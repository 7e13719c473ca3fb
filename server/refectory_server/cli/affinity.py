"""Which CPUs the API process runs on."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection
from pathlib import Path

from refectory_server.runner.cpu_placement import format_cpu_list

logger = logging.getLogger(__name__)


def keep_to(cpus: Collection[int]) -> None:
    """Bind every thread of this process and those they start; no CPUs: leave all as it is."""
    if not cpus:
        return
    logger.info("the API process keeps to CPUs %s", format_cpu_list(cpus))
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended, or the CPUs went away
            os.sched_setaffinity(int(task.name), cpus)
