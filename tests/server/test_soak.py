"""The soak, in short: the memory of a simulated server does not grow with the requests it had."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[2] / "server" / "benchmarks" / "soak.py"


def soak(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", str(SOAK), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_memory_does_not_grow_with_the_number_of_requests() -> None:
    # 100 to 400 bytes are the allocator's settling in, which ends after some thousand requests.
    # The least that could leak, one `Request` kept in the engine, is 1,900 bytes.
    done = soak("--num-requests=2000", "--max-slope=1500")
    assert done.returncode == 0, done.stdout + done.stderr
    *sizes, slope, idle = done.stdout.splitlines()
    assert [int(line.split()[0]) for line in sizes] == list(range(200, 2001, 200))
    assert slope.startswith("2000 requests in ")
    assert re.fullmatch(r"idle for 3 s: \d+\.\d\d% of a CPU", idle)


def test_growth_above_the_limit_is_an_exit_code() -> None:
    done = soak("--num-requests=40", "--max-slope=-1e9")
    assert (done.returncode, done.stderr) == (1, "")
