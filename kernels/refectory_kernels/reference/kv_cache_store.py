"""Writing a step's keys and values into their slots."""

from __future__ import annotations

import torch


def kv_cache_store(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """cache[slot // block_size, slot % block_size] = row, for every token's slot.

    key, value: [num_tokens, num_kv_heads, head_dim]
    key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim], changed in place
    slot_mapping: [num_tokens], int64, no slot twice
    """
    key_cache.flatten(0, 1).index_copy_(0, slot_mapping, key)
    value_cache.flatten(0, 1).index_copy_(0, slot_mapping, value)
