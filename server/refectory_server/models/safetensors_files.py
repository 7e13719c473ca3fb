"""Safetensors files of a folder, and what their headers say: names, types, shapes, no tensors.

Owns which files hold the weights and the header's format. Knows no torch and no families.
https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from refectory_server.errors import StartupError
from refectory_server.models.json_file import read_json_object

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_MAX_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "I16": 16, "U16": 16, "F16": 16,
    "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor as its file announces it; `dtype` is the format's own word, BF16 or the like."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def is_floating_point(self) -> bool:
        return self.dtype.startswith(("F", "BF"))


def safetensors_paths(folder: Path) -> list[Path]:
    """The files that hold the model's weights.

    Raises `StartupError` with reason `ModelInvalid` where there are none, or not all.
    """
    if (folder / INDEX_FILE).is_file():
        index = folder / INDEX_FILE
        names = index_file_names(read_json_object(index, "ModelInvalid"), str(index))
        for name in names:
            if not os.path.isfile(folder / name):  # false, too, for what can be no name
                raise _invalid(f"{folder / INDEX_FILE} names {name}, which is not there")
        return [folder / name for name in names]
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    raise no_weights(str(folder), sorted(path.name for path in folder.iterdir()))


def index_file_names(index: Mapping[str, Any], source: str) -> list[str]:
    """The files an index names, sorted. Raises `StartupError` for one outside its folder."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise _invalid(f"{source} has no weight_map")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name:
            raise _invalid(f"{source} names {name}, a file outside its folder")
    return names


def no_weights(source: str, file_names: list[str]) -> StartupError:
    """What to say of files without weights that could be loaded."""
    pickles = [name for name in file_names if name.endswith(PICKLE_SUFFIXES)]
    if pickles:
        return _invalid(
            f"{source} has its weights as {pickles[0]}: pickled files can run code and are never "
            "loaded; convert the model to safetensors"
        )
    return _invalid(f"{source} has neither {SINGLE_FILE} nor {INDEX_FILE}")


def read_safetensors_header(path: Path) -> dict[str, TensorHeader]:
    """Raises `StartupError` with reason `ModelInvalid`, naming the file."""
    try:
        with path.open("rb") as file:

            def read(offset: int, length: int) -> bytes:
                file.seek(offset)
                return file.read(length)

            return parse_safetensors_header(read, path.stat().st_size, str(path))
    except OSError as error:
        raise _invalid(f"cannot read {path}: {error}") from error


def parse_safetensors_header(
    read: Callable[[int, int], bytes], num_bytes: int, source: str
) -> dict[str, TensorHeader]:
    """The header of a file of `num_bytes`; `read` gives the bytes at (offset, length).

    Checks that every tensor lies within the file. Raises `StartupError`, naming `source`.
    """
    length = int.from_bytes(read(0, _LENGTH_BYTES), "little")
    if not 0 < length <= min(_MAX_HEADER_BYTES, num_bytes - _LENGTH_BYTES):
        raise _malformed(source, f"its header has {length} bytes, the file {num_bytes}")
    try:
        entries = json.loads(read(_LENGTH_BYTES, length))
        entries.pop("__metadata__", None)
        headers, end = {}, 0
        for name, entry in entries.items():
            headers[name] = TensorHeader(entry["dtype"], tuple(map(int, entry["shape"])))
            begin, stop = map(int, entry["data_offsets"])
            num_bits = prod(headers[name].shape) * _BITS.get(entry["dtype"], 0)
            if num_bits and (stop - begin) * 8 != num_bits:
                raise _malformed(source, f"its tensor {name} has {stop - begin} bytes of data")
            end = max(end, stop)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _malformed(source, f"{type(error).__name__} in its header: {error}") from error
    if _LENGTH_BYTES + length + end > num_bytes:
        raise _malformed(
            source, f"it ends at byte {num_bytes}, its data at byte {_LENGTH_BYTES + length + end}"
        )
    return headers


def _malformed(source: str, problem: str) -> StartupError:
    return _invalid(f"{source} is not a valid safetensors file: {problem}")


def _invalid(message: str) -> StartupError:
    return StartupError(message, reason="ModelInvalid")
