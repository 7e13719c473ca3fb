"""The API process keeps to the CPUs that the engine leaves to it, with all of its threads."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import os, sys, threading
from refectory_server.cli.affinity import keep_to

is_done = threading.Event()
before = threading.Thread(target=is_done.wait)
before.start()
keep_to({cpus})
after = threading.Thread(target=is_done.wait)
after.start()
print([sorted(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")])
is_done.set()
"""


def affinities(cpus: tuple[int, ...]) -> list[list[int]]:
    """Of all threads of a process that was told to keep to `cpus`."""
    command = [sys.executable, "-P", "-c", PROGRAM.format(cpus=cpus)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [
        [int(cpu) for cpu in part.split(",")] for part in done.stdout.strip("[]\n").split("], [")
    ]


def test_every_thread_keeps_to_the_spare_cpus() -> None:
    cpu = max(os.sched_getaffinity(0))
    assert affinities((cpu,)) == [[cpu]] * 3


def test_without_spare_cpus_nothing_changes() -> None:
    assert affinities(()) == [sorted(os.sched_getaffinity(0))] * 3


def test_cpus_that_went_away_are_no_obstacle() -> None:
    assert affinities((1023,)) == [sorted(os.sched_getaffinity(0))] * 3
