"""Reads the key/value section of a GGUF file.

Owns the byte layout of that section (GGUF versions 2 and 3, little-endian), not what the keys
mean, nor the tensors after it. Imports no torch. The file is mapped and only this section is
touched: 100 000 strings take some tens of milliseconds, whatever the size of the weights.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from refectory_server.errors import StartupError

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)

_SCALAR_FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING = 8
_ARRAY = 9
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class MalformedGguf(Exception):
    """The bytes are not what the format says; becomes a `StartupError` with the path."""


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """All keys with their values: int, float, bool, str, or a list of one of these.

    Raises `StartupError(reason="ModelInvalid")` for a file that cannot be read, that is no GGUF
    file, or that ends inside the section.
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return GgufHeader(data).read_metadata()
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        detail = error.strerror if isinstance(error, OSError) else str(error)
        raise StartupError(f"cannot read {path}: {detail}", reason="ModelInvalid") from error
    except MalformedGguf as error:
        raise StartupError(
            f"{path} is not a valid GGUF file: {error}", reason="ModelInvalid"
        ) from error


class GgufHeader:
    """A cursor over the header. Every length is checked before the bytes are taken.

    Raises `MalformedGguf`; `read_metadata` first, what follows it belongs to `gguf_file`.
    """

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._size = len(data)
        self._offset = 0
        self.num_tensors = 0

    @property
    def offset(self) -> int:
        """The first byte not read yet."""
        return self._offset

    def read_metadata(self) -> dict[str, Any]:
        magic = self._data[:4]
        if magic != MAGIC:
            raise MalformedGguf(f"it starts with {magic!r}, not {MAGIC!r}")
        self._offset = 4
        version = self.u32()
        if version not in SUPPORTED_VERSIONS:
            raise MalformedGguf(
                f"version {version} (little-endian); supported: {SUPPORTED_VERSIONS}"
            )
        self.num_tensors = self.u64()
        metadata: dict[str, Any] = {}
        for _ in range(self.u64()):
            key = self.strings(1)[0]
            metadata[key] = self._value(self.u32(), key)
        return metadata

    def _value(self, value_type: int, key: str) -> Any:
        if value_type == _STRING:
            return self.strings(1)[0]
        if value_type != _ARRAY:
            return self._scalars(value_type, 1, key)[0]
        item_type, count = self.u32(), self.u64()
        if item_type == _STRING:
            return self.strings(count)
        return self._scalars(item_type, count, key)

    def _scalars(self, value_type: int, count: int, key: str) -> list[Any]:
        letter = _SCALAR_FORMATS.get(value_type)
        if letter is None:
            raise MalformedGguf(f"{key} has the unknown value type {value_type}")
        num_bytes = count * struct.calcsize(f"<{letter}")
        start = self._take(num_bytes)
        return list(struct.unpack(f"<{count}{letter}", self._data[start : start + num_bytes]))

    def strings(self, count: int) -> list[str]:
        # The hot loop of a start: locals instead of attributes and calls.
        data, size, offset, unpack = self._data, self._size, self._offset, _U64.unpack_from
        strings = []
        try:
            for _ in range(count):
                (length,) = unpack(data, offset)
                start = offset + 8
                offset = start + length
                if offset > size:
                    raise MalformedGguf(f"it ends at byte {size}, inside a string")
                strings.append(data[start:offset].decode())
        except struct.error:
            raise MalformedGguf(f"it ends at byte {size}, inside a string") from None
        except UnicodeDecodeError:
            raise MalformedGguf(f"the string at byte {offset} is not UTF-8") from None
        self._offset = offset
        return strings

    def u32(self) -> int:
        return int(_U32.unpack_from(self._data, self._take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self._data, self._take(8))[0])

    def _take(self, num_bytes: int) -> int:
        """Advance by `num_bytes`; returns where they start."""
        start = self._offset
        if start + num_bytes > self._size:
            raise MalformedGguf(
                f"it ends at byte {self._size}, {num_bytes} more bytes are needed at byte {start}"
            )
        self._offset = start + num_bytes
        return start
