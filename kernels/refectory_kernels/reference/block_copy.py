"""Copying whole KV blocks (copy on write)."""

from __future__ import annotations

import torch


def block_copy(kv_cache: torch.Tensor, source_ids: torch.Tensor, target_ids: torch.Tensor) -> None:
    """block[target] = block[source] in every layer; all sources are read before any write.

    kv_cache: [num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim], changed in place
    source_ids, target_ids: [num_copies], int64, no target twice
    """
    kv_cache.index_copy_(2, target_ids, kv_cache.index_select(2, source_ids))
