"""For the processes that the server starts: they end with it, stopped and busy ones as well.

A process sees its standard input close only when it runs and looks; the kernel needs neither.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; call it first.

    parent_pid: as the parent knew it; where that is no longer the parent, this process exits
    Source: PR_SET_PDEATHSIG(2const).
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before the kernel was told
        sys.exit(1)
