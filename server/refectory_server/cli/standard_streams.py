"""Descriptors 0, 1 and 2, which a program may have been started without."""

from __future__ import annotations

import os


def open_standard_streams() -> None:
    """Open what the parent left closed, as the null device, for this program and its children.

    Otherwise the first sockets get these numbers: libuv aborts, and messages for people go there.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free: this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
