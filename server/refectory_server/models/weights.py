"""`load_weights`: a checkpoint as a table of tensors, complete and of the right shapes.

Knows neither file formats (`checkpoint`) nor how an executor packs the tensors.
"""

from __future__ import annotations

import torch

from refectory_server.models.checkpoint import Checkpoint, GgufCheckpoint, SafetensorsCheckpoint
from refectory_server.models.decoder_spec import DecoderSpec
from refectory_server.models.gguf_file import GgufFile
from refectory_server.models.source import ModelFiles
from refectory_server.models.tensor_check import check_names, check_tensor
from refectory_server.models.tensor_shapes import expected_shapes
from refectory_server.runner.interface import ReportProgress

LOAD_PHASE = "load_weights"
WeightTable = dict[str, torch.Tensor]
"""Hugging Face tensor name to tensor."""


def load_weights(
    files: ModelFiles,
    spec: DecoderSpec,
    dtype: torch.dtype,
    report: ReportProgress,
    gguf: GgufFile | None = None,
) -> WeightTable:
    """Every tensor of `spec` in `dtype`, on the CPU.

    `gguf` is the opened file where it is already at hand. Raises `StartupError` with reason
    `ModelInvalid` for a missing, misshapen or unexpected tensor.
    """
    report(LOAD_PHASE, 0.0)
    checkpoint: Checkpoint = (
        GgufCheckpoint(gguf or GgufFile(files.path), spec)
        if files.is_gguf
        else SafetensorsCheckpoint(files.path)
    )
    shapes = expected_shapes(spec)
    check_names(files.name, checkpoint.names, shapes.keys())
    table: WeightTable = {}
    for index, (name, shape) in enumerate(shapes.items(), start=1):
        tensor = checkpoint.read(name)
        check_tensor(
            files.name,
            name,
            tuple(tensor.shape),
            shape,
            float_type=tensor.is_floating_point(),
            dtype=tensor.dtype,
        )
        table[name] = tensor.to(dtype)
        report(LOAD_PHASE, index / len(shapes))
    return table
