"""`Checkpoint`: a model's tensors by Hugging Face name, whatever files hold them.

Owns file formats: safetensors (one file or shards) and GGUF (names, dequantising, row order).
Does not know which tensors a family needs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from refectory_server.errors import StartupError
from refectory_server.models.decoder_spec import DecoderSpec
from refectory_server.models.gguf_file import GgufFile
from refectory_server.models.gguf_names import hf_names
from refectory_server.models.safetensors_files import safetensors_paths


class Checkpoint(Protocol):
    @property
    def names(self) -> set[str]: ...

    def read(self, name: str) -> torch.Tensor:
        """The tensor on the CPU, in the file's precision (GGUF: float32)."""
        ...


class SafetensorsCheckpoint:
    """A folder's safetensors files."""

    def __init__(self, folder: Path) -> None:
        self._files = [_open(path) for path in safetensors_paths(folder)]
        self._file_of = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118

    @property
    def names(self) -> set[str]:
        return set(self._file_of)

    def read(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file_of[name].get_tensor(name)
        return tensor


class GgufCheckpoint:
    """A GGUF file, under Hugging Face names."""

    def __init__(self, file: GgufFile, spec: DecoderSpec) -> None:
        self._file = file
        self._spec = spec
        known = hf_names(spec)
        self._gguf_names = {known.get(name, name): name for name in file.tensors}
        self._has_paired_rows = file.metadata.get("general.architecture") == "llama"

    @property
    def names(self) -> set[str]:
        return set(self._gguf_names)

    def read(self, name: str) -> torch.Tensor:
        tensor = torch.from_numpy(self._file.read_tensor(self._gguf_names[name]))
        if self._has_paired_rows and ".q_proj." in name:
            return _halves_from_pairs(tensor, self._spec.num_heads)
        if self._has_paired_rows and ".k_proj." in name:
            return _halves_from_pairs(tensor, self._spec.num_kv_heads)
        return tensor


def _halves_from_pairs(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undo the row order that GGUF's llama files use for q and k.

    There, rotary pairs are rows (2i, 2i + 1) of a head; here they are (i, i + head_dim / 2).
    """
    if tensor.shape[0] % (2 * num_heads):
        return tensor  # misshapen, as whoever asked for it will find
    half = tensor.shape[0] // num_heads // 2
    paired = tensor.reshape(num_heads, half, 2, *tensor.shape[1:])
    return paired.transpose(1, 2).reshape(tensor.shape)


def _open(path: Path) -> Any:
    open_file: Callable[..., Any] = safe_open
    try:
        return open_file(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise _invalid(f"{path} is not a valid safetensors file: {error}") from error


def _invalid(message: str) -> StartupError:
    return StartupError(message, reason="ModelInvalid")
