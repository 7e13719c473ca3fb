"""`load_weights`: a checkpoint as a table of tensors, complete and of the right shapes.

Knows neither file formats (`checkpoint`) nor how an executor packs the tensors.
"""

from __future__ import annotations

import logging
import re

import torch

from refectory_server.errors import StartupError
from refectory_server.models.checkpoint import Checkpoint, GgufCheckpoint, SafetensorsCheckpoint
from refectory_server.models.decoder_spec import DecoderSpec
from refectory_server.models.gguf_file import GgufFile
from refectory_server.models.source import ModelFiles
from refectory_server.models.tensor_shapes import LM_HEAD, expected_shapes
from refectory_server.runner.interface import ReportProgress

logger = logging.getLogger(__name__)

LOAD_PHASE = "load_weights"
WeightTable = dict[str, torch.Tensor]
"""Hugging Face tensor name to tensor."""

_COMPUTED_HERE = re.compile(r"\.rotary_emb\.inv_freq$")
_MAX_NAMES_SHOWN = 5


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
    _check_names(files, checkpoint.names, set(shapes))
    table: WeightTable = {}
    for index, (name, shape) in enumerate(shapes.items(), start=1):
        tensor = checkpoint.read(name)
        if tuple(tensor.shape) != shape:
            raise _invalid(
                f"tensor {name} of {files.name} has the shape {list(tensor.shape)}; "
                f"the config asks for {list(shape)}"
            )
        if not tensor.is_floating_point():
            raise _invalid(f"tensor {name} of {files.name} is {tensor.dtype}, not a float type")
        table[name] = tensor.to(dtype)
        report(LOAD_PHASE, index / len(shapes))
    return table


def _check_names(files: ModelFiles, present: set[str], expected: set[str]) -> None:
    missing = sorted(expected - present)
    if missing:
        raise _invalid(f"{files.name} lacks {_listed(missing)}")
    extra = sorted(name for name in present - expected if not _COMPUTED_HERE.search(name))
    if extra == [LM_HEAD]:
        logger.warning("%s ties its embeddings; its %s is not used", files.name, LM_HEAD)
    elif extra:
        raise _invalid(f"{files.name} has {_listed(extra)}, which its config gives no place")


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES_SHOWN])
    more = len(names) - _MAX_NAMES_SHOWN
    if more > 0:
        return f"the tensors {shown} and {more} more"
    return f"the tensor {shown}" if len(names) == 1 else f"the tensors {shown}"


def _invalid(message: str) -> StartupError:
    return StartupError(message, reason="ModelInvalid")
