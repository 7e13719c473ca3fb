"""`DownloadMarker`: the file that says that a folder holds a whole model, and which.

Written last, so a folder without it is not complete. Knows no network.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

MARKER_NAME = ".refectory-complete.json"


@dataclass(frozen=True, slots=True)
class MarkedFile:
    num_bytes: int
    digest: str
    """algorithm:hexadecimal"""


@dataclass(frozen=True, slots=True)
class DownloadMarker:
    model: str
    """org/name"""
    revision: str
    """As it was asked for."""
    commit: str
    files: dict[str, MarkedFile]

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files.values())

    def answers(self, model: str, revision: str) -> bool:
        return self.model == model and revision in (self.revision, self.commit)

    def is_intact(self, folder: Path) -> bool:
        """Every file is there in its size."""
        return all(
            (folder / name).is_file() and (folder / name).stat().st_size == file.num_bytes
            for name, file in self.files.items()
        )

    def write(self, folder: Path) -> None:
        """All at once, and only when everything before it is on the disk."""
        path = folder / MARKER_NAME
        unfinished = folder / (MARKER_NAME + ".part")
        with unfinished.open("w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(self), file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        sync_folder(folder)


def read_marker(folder: Path) -> DownloadMarker | None:
    """None where there is none, or none that can be read."""
    try:
        data = json.loads((folder / MARKER_NAME).read_text(encoding="utf-8"))
        files = {name: MarkedFile(**entry) for name, entry in data.pop("files").items()}
        return DownloadMarker(**data, files=files)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def sync_folder(folder: Path) -> None:
    """Bring the folder's names to the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
