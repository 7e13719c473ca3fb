"""Which precision weights and KV cache are kept in."""

from __future__ import annotations

import torch

from refectory_server.config import ServerConfig
from refectory_server.models.decoder_spec import DecoderSpec

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.bfloat16}
"""Checkpoint precision to what is computed; float16 is not computed yet."""


def compute_dtype(config: ServerConfig, spec: DecoderSpec) -> torch.dtype:
    """--dtype auto: the checkpoint's precision, bfloat16 in place of float16."""
    wanted = config.model.dtype
    return _DTYPES[spec.checkpoint_dtype if wanted == "auto" else wanted]
