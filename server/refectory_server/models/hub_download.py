"""`HubDownload`: a hub model's needed files into one plain folder, each whole or not at all.

Whatever ends it, the next call goes on where it stopped: a file in work is NAME.part in a folder of
its own, appended to, checked and then renamed; the marker comes last. Several files are loaded at
once, by threads. Knows no HTTP.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refectory_server.errors import ServerError, StartupError
from refectory_server.models.download_marker import (
    MARKER_NAME,
    DownloadMarker,
    MarkedFile,
    read_marker,
    sync_folder,
)
from refectory_server.models.folder_lock import folder_lock
from refectory_server.models.hub_files import text_files, weight_files
from refectory_server.models.hub_repo import (
    HubRepo,
    RangeRefused,
    RemoteFile,
    TransientHubError,
)
from refectory_server.models.retries import Retries

logger = logging.getLogger(__name__)

WORK_FOLDER = ".refectory-download"
_NUM_THREADS = 4
_MAX_DAMAGED = 2
_READ_BYTES = 1 << 22
_FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

ReportBytes = Callable[[int, int], None]
"""Bytes that are here, bytes in all. Called from several threads, one at a time."""


class _Damaged(ServerError):
    """What arrived is not what the hub announced."""


class _Cancelled(ServerError):
    """Another file has failed for good."""


@dataclass(slots=True)
class _Progress:
    report: ReportBytes
    total_bytes: int = 0
    num_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, num_bytes: int) -> None:
        """Of bytes that are here now, or, below 0, of bytes that are thrown away."""
        with self.lock:
            self.num_bytes += num_bytes
            self.report(self.num_bytes, self.total_bytes)


class HubDownload:
    def __init__(
        self,
        repo: HubRepo,
        folder: Path,
        *,
        retries: Retries,
        report: ReportBytes = lambda num_bytes, total_bytes: None,
    ) -> None:
        self._repo = repo
        self._folder = folder
        self._work_folder = folder / WORK_FOLDER
        self._retries = retries
        self._progress = _Progress(report)
        self._is_cancelled = threading.Event()

    def run(self) -> tuple[DownloadMarker, bool]:
        """The marker of the complete folder, and whether anything had to be downloaded.

        A folder that is already complete is not compared with the hub. Raises `StartupError`.
        """
        hub_id = self._repo.hub_id
        with self._disk_errors():
            self._folder.mkdir(parents=True, exist_ok=True)
            with folder_lock(self._folder):
                marker = read_marker(self._folder)
                if marker is not None:
                    if not self._is_wanted(marker):
                        raise StartupError(
                            f"{self._folder} holds {marker.model}@{marker.revision}, not {hub_id}; "
                            "give another folder, or empty it",
                            reason="FolderInUse",
                        )
                    if marker.is_intact(self._folder):
                        return marker, False
                    logger.warning("%s is no longer complete: downloading again", self._folder)
                    (self._folder / MARKER_NAME).unlink()
                return self._download(), True

    def _is_wanted(self, marker: DownloadMarker) -> bool:
        """Asks the hub only where the names differ: two revisions may be one commit."""
        hub_id = self._repo.hub_id
        if marker.answers(hub_id.repo, hub_id.revision):
            return True
        if marker.model != hub_id.repo or hub_id.is_pinned:
            return False
        return marker.commit == self._retries.run(lambda: self._repo.listing).commit

    def _download(self) -> DownloadMarker:
        hub_id = self._repo.hub_id
        listing = self._retries.run(lambda: self._repo.listing)
        names = text_files(listing.files, str(hub_id))
        names += weight_files(listing.files, self._read_small, str(hub_id))
        files = [listing.files[name] for name in names]
        self._work_folder.mkdir(exist_ok=True)
        self._progress.total_bytes = sum(file.num_bytes for file in files)
        self._check_space(files)
        logger.info(
            "downloading %s at %s: %d files, %d bytes",
            hub_id,
            listing.commit,
            len(files),
            self._progress.total_bytes,
        )
        self._fetch_all(files)
        marker = DownloadMarker(
            hub_id.repo,
            hub_id.revision,
            listing.commit,
            {file.name: _marked(file) for file in files},
        )
        sync_folder(self._folder)
        marker.write(self._folder)
        shutil.rmtree(self._work_folder, ignore_errors=True)
        return marker

    def _read_small(self, name: str) -> bytes:
        return self._retries.run(lambda: self._repo.read(name))

    def _check_space(self, files: list[RemoteFile]) -> None:
        """Before hours of downloading, not after."""
        paths = [path for file in files for path in (self._folder / file.name, self._part(file))]
        num_present = sum(path.stat().st_size for path in paths if path.is_file())
        num_missing = self._progress.total_bytes - num_present
        if num_missing > shutil.disk_usage(self._folder).free:
            raise self._full(num_missing)

    def _fetch_all(self, files: list[RemoteFile]) -> None:
        def fetch(file: RemoteFile) -> None:
            with self._disk_errors():
                self._fetch(file)

        with ThreadPoolExecutor(_NUM_THREADS) as threads:
            # Small files first: they say soonest what is wrong.
            ordered = sorted(files, key=lambda file: file.num_bytes)
            futures = [threads.submit(fetch, file) for file in ordered]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            except BaseException:
                self._is_cancelled.set()
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def _fetch(self, file: RemoteFile) -> None:
        path, part = self._folder / file.name, self._part(file)
        if path.is_file() and path.stat().st_size == file.num_bytes:
            if _is_good(path, file):
                self._progress.add(file.num_bytes)
                return
            path.unlink()
        num_damaged = 0
        if part.exists():
            self._progress.add(part.stat().st_size)
        while True:
            try:
                self._retries.run(
                    lambda: self._append(part, file),
                    progress=lambda: self._size_of_part(part),
                    sleep=self._is_cancelled.wait,
                )
                break
            except _Damaged as error:
                num_damaged += 1
                self._progress.add(-self._size_of_part(part))
                part.unlink(missing_ok=True)
                if num_damaged == _MAX_DAMAGED:
                    raise StartupError(str(error), reason="DownloadDamaged") from error
                logger.warning("%s; downloading it again", error)
        part.replace(path)

    def _append(self, part: Path, file: RemoteFile) -> None:
        """Bring `part` to its full length and check it."""
        with part.open("ab") as target:
            offset = target.tell()
            if offset < file.num_bytes:
                try:
                    with self._repo.stream(file.name, offset) as pieces:
                        for piece in pieces:
                            if self._is_cancelled.is_set():
                                raise _Cancelled(file.name)
                            target.write(piece)
                            self._progress.add(len(piece))
                except RangeRefused as error:
                    raise _Damaged(f"{file.name}: {error}") from error
            target.flush()
            os.fsync(target.fileno())
            num_bytes = target.tell()
        if num_bytes < file.num_bytes:
            raise TransientHubError(
                f"{file.name} ended after {num_bytes} of {file.num_bytes} bytes"
            )
        if num_bytes > file.num_bytes or not _is_good(part, file):
            raise _Damaged(
                f"{file.name} of model {self._repo.hub_id} arrived damaged: {num_bytes} of "
                f"{file.num_bytes} bytes, and not those of its digest"
            )

    def _part(self, file: RemoteFile) -> Path:
        """Named after the content too: another commit's beginning is no use."""
        digest = file.digest.value[:16] if file.digest else self._repo.listing.commit[:16]
        return self._work_folder / f"{file.name}.{digest}.part"

    def _size_of_part(self, part: Path) -> int:
        return part.stat().st_size if part.exists() else 0

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _FULL_DISK:
                raise self._full(self._progress.total_bytes - self._progress.num_bytes) from error
            raise StartupError(
                f"cannot write to {self._folder}: {error}", reason="CannotWrite"
            ) from error

    def _full(self, num_missing: int) -> StartupError:
        free = shutil.disk_usage(self._folder).free
        return StartupError(
            f"the disk of {self._folder} is full: {num_missing} bytes to come, {free} free",
            reason="DiskFull",
        )


def _is_good(path: Path, file: RemoteFile) -> bool:
    """Whether the content has the hub's digest, where the hub gave one."""
    if file.digest is None:
        return True
    hasher: Any = hashlib.sha256()
    if file.digest.algorithm == "git-sha1":
        hasher = hashlib.sha1(b"blob %d\0" % file.num_bytes, usedforsecurity=False)
    with path.open("rb") as source:
        while data := source.read(_READ_BYTES):
            hasher.update(data)
    return bool(hasher.hexdigest() == file.digest.value)


def _marked(file: RemoteFile) -> MarkedFile:
    digest = f"{file.digest.algorithm}:{file.digest.value}" if file.digest else ""
    return MarkedFile(file.num_bytes, digest)
