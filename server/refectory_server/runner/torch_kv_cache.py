"""The KV cache's tensors for the torch executor."""

from __future__ import annotations

import torch

from refectory_server.errors import StartupError
from refectory_server.models.decoder_spec import DecoderSpec
from refectory_server.runner.kv_cache import KVCacheSize


def allocate_kv_cache(spec: DecoderSpec, size: KVCacheSize, dtype: torch.dtype) -> torch.Tensor:
    """[num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim]; 2: keys, values.

    Every layer has every block, those with an attention window too (see `AttentionSpec`).
    Not filled: the pages are taken from the system only as blocks are used. No slot is read
    before it is written. Raises `StartupError` where the memory cannot be had.
    """
    shape = (
        spec.num_layers,
        2,
        size.num_blocks,
        size.block_size,
        spec.num_kv_heads,
        spec.head_dim,
    )
    try:
        return torch.empty(shape, dtype=dtype)
    except RuntimeError as error:
        raise StartupError(
            f"cannot allocate {size.num_bytes} bytes for the KV cache; lower "
            "--kv-cache-memory-bytes or --num-gpu-blocks-override",
            reason="KVCacheTooLarge",
        ) from error
