"""`GgufFile`: the metadata and the tensors of one .gguf file.

Owns the tensor section (names, shapes, places) and checks it against the file's size. Knows
neither families nor torch. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from refectory_server.errors import StartupError
from refectory_server.models.gguf_metadata import GgufHeader, MalformedGguf

_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies. `shape` is in numpy's order, rows first."""

    shape: tuple[int, ...]
    ggml_type: int
    offset: int
    num_bytes: int


class GgufFile:
    """One open .gguf file.

    Raises `StartupError` with reason `ModelInvalid`, naming the file, for a foreign, truncated
    or inconsistent one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        """Scalars, strings, and lists of one of these, by key."""
        self.tensors: dict[str, GgufTensor] = {}
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._read_header()
        except (OSError, ValueError) as error:
            raise StartupError(f"cannot read {path}: {error}", reason="ModelInvalid") from error
        except MalformedGguf as error:
            raise StartupError(
                f"{path} is not a valid GGUF file: {error}", reason="ModelInvalid"
            ) from error

    def read_tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor in float32, dequantised; a copy of its own.

        Raises `StartupError` for a type that holds no weights.
        """
        import gguf

        tensor = self.tensors[name]
        raw = np.frombuffer(self._data, np.uint8, tensor.num_bytes, tensor.offset)
        kind = gguf.GGMLQuantizationType(tensor.ggml_type)
        try:
            values = gguf.quants.dequantize(raw.reshape(*tensor.shape[:-1], -1), kind)
        except (NotImplementedError, ValueError) as error:
            raise StartupError(
                f"tensor {name} of {self.path} is {kind.name} of the shape {list(tensor.shape)}, "
                "which is no weight that can be dequantised",
                reason="ModelInvalid",
            ) from error
        return np.array(values, dtype=np.float32).reshape(tensor.shape)

    def _read_header(self) -> None:
        header = GgufHeader(self._data)
        self.metadata = header.read_metadata()
        infos = [_read_tensor_info(header) for _ in range(header.num_tensors)]
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise MalformedGguf(f"general.alignment is {alignment}")
        data_start = -(-header.offset // alignment) * alignment
        for name, shape, ggml_type, offset in infos:
            tensor = GgufTensor(
                shape, ggml_type, data_start + offset, _num_bytes(name, shape, ggml_type)
            )
            end = tensor.offset + tensor.num_bytes
            if end > len(self._data):
                raise MalformedGguf(
                    f"it ends at byte {len(self._data)}, its tensor {name} at byte {end}"
                )
            self.tensors[name] = tensor


def _read_tensor_info(header: GgufHeader) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, type, offset from the start of the tensor data."""
    name = header.strings(1)[0]
    num_dimensions = header.u32()
    if num_dimensions > _MAX_DIMENSIONS:
        raise MalformedGguf(f"its tensor {name} has {num_dimensions} dimensions")
    shape = tuple(header.u64() for _ in range(num_dimensions))[::-1]
    return name, shape, header.u32(), header.u64()


def _num_bytes(name: str, shape: tuple[int, ...], ggml_type: int) -> int:
    import gguf

    try:
        kind = gguf.GGMLQuantizationType(ggml_type)
    except ValueError:
        raise MalformedGguf(f"its tensor {name} has the unknown type {ggml_type}") from None
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    if shape and shape[-1] % block_values:
        raise MalformedGguf(
            f"its tensor {name} has rows of {shape[-1]} values, not a multiple of {block_values}"
        )
    return int(prod(shape) // block_values * block_bytes)
