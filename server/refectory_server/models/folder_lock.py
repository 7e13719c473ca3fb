"""`folder_lock`: one process at a time works on a folder, until it ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import time
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

LOCK_NAME = ".refectory-download.lock"
_POLL_S = 0.5


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Wait for the folder's lock, hold it meanwhile. Raises `OSError` where it cannot be made."""
    with (folder / LOCK_NAME).open("w") as file:
        has_told = False
        while not _try_lock(file.fileno()):
            if not has_told:
                logger.info("another process downloads into %s: waiting for it", folder)
                has_told = True
            time.sleep(_POLL_S)
        yield


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
