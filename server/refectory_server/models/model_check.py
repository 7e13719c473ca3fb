"""`check_model`: whether a model could be served, from its config and its files' headers.

What loading would refuse is refused here as well, in the same words, but without a tensor read
and without torch: a few megabytes of memory, whatever the model's size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from refectory_server.models.decoder_spec import DecoderSpec
from refectory_server.models.gguf_file import GgufFile
from refectory_server.models.gguf_names import hf_names
from refectory_server.models.hf_config import read_eos_token_ids, read_hf_config
from refectory_server.models.registry import read_decoder_spec
from refectory_server.models.safetensors_files import (
    TensorHeader,
    read_safetensors_header,
    safetensors_paths,
)
from refectory_server.models.source import ModelFiles
from refectory_server.models.tensor_check import check_names, check_tensor
from refectory_server.models.tensor_shapes import expected_shapes

ReadHeaders = Callable[[], dict[str, TensorHeader]]


@dataclass(frozen=True, slots=True)
class CheckedModel:
    spec: DecoderSpec
    num_tensors: int


def check_model(files: ModelFiles, read_headers: ReadHeaders | None = None) -> CheckedModel:
    """Raises `StartupError` for whatever loading would refuse.

    `read_headers`: the headers of weights that are not in the folder
    """
    gguf = GgufFile(files.path) if files.is_gguf else None
    hf_config = read_hf_config(files, gguf)
    spec = read_decoder_spec(hf_config)
    read_eos_token_ids(files, hf_config)
    expected = expected_shapes(spec)
    if gguf is not None:
        headers = _gguf_headers(gguf, spec)
    else:
        headers = read_headers() if read_headers else _folder_headers(files)
    check_names(files.name, headers.keys(), expected.keys())
    for name, shape in expected.items():
        header = headers[name]
        check_tensor(
            files.name,
            name,
            header.shape,
            shape,
            float_type=header.is_floating_point,
            dtype=header.dtype,
        )
    return CheckedModel(spec, len(expected))


def _folder_headers(files: ModelFiles) -> dict[str, TensorHeader]:
    headers: dict[str, TensorHeader] = {}
    for path in safetensors_paths(files.path):
        headers |= read_safetensors_header(path)
    return headers


def _gguf_headers(file: GgufFile, spec: DecoderSpec) -> dict[str, TensorHeader]:
    """Every type of GGUF is read as float32."""
    names = hf_names(spec)
    return {
        names.get(name, name): TensorHeader("F32", tensor.shape)
        for name, tensor in file.tensors.items()
    }
