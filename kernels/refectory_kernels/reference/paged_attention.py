"""Causal attention of packed sequences over a paged KV cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from refectory_kernels.attention_metadata import AttentionMetadata, SequenceSpan

_MIN_SHARED_WORK = 2**21
"""Multiplications below which a sequence is left to one thread: handing it out costs more, and
when the cores are contended it costs milliseconds."""


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    metadata: AttentionMetadata,
    scale: float,
) -> torch.Tensor:
    """softmax(scale * q kᵀ) v over each sequence's own keys up to the query's position.

    query: [num_tokens, num_heads, head_dim], the sequences of the step one after another;
        query head h reads KV head h // (num_heads / num_kv_heads)
    key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim], this step's tokens
        already stored
    returns [num_tokens, num_heads, head_dim] in the type of `query`; sums are float32

    Sequences are computed one at a time, so that no result depends on what else is in the step.

    Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with
    PagedAttention"; Ainslie et al. 2023, "GQA: Training Generalized Multi-Query Transformer
    Models from Multi-Head Checkpoints".
    """
    output = torch.empty_like(query)
    num_threads = torch.get_num_threads()
    try:
        for span in metadata.spans:
            rows = slice(span.query_start, span.query_start + span.num_queries)
            work = query[rows].numel() * span.context_len
            torch.set_num_threads(num_threads if work >= _MIN_SHARED_WORK else 1)
            output[rows] = _attend(query[rows], key_cache, value_cache, span, scale)
    finally:
        torch.set_num_threads(num_threads)
    return output


def _attend(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    span: SequenceSpan,
    scale: float,
) -> torch.Tensor:
    """One sequence: query and result [num_queries, num_heads, head_dim]."""
    num_heads, head_dim = query.shape[1:]
    num_kv_heads = key_cache.shape[2]
    group = num_heads // num_kv_heads
    keys = _gather(key_cache, span.block_ids, span.context_len)
    values = _gather(value_cache, span.block_ids, span.context_len)
    if span.num_queries == 1:
        # The heads of a group stand in for query positions: no key is repeated.
        queries = query.view(1, num_kv_heads, group, head_dim)
        result = F.scaled_dot_product_attention(queries, keys, values, scale=scale)
        return result.view(1, num_heads, head_dim)
    queries = query.view(-1, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    shared = (num_kv_heads, group, span.context_len, head_dim)
    result = F.scaled_dot_product_attention(
        queries,
        keys.transpose(0, 1).expand(shared),
        values.transpose(0, 1).expand(shared),
        attn_mask=span.mask,
        is_causal=span.mask is None,
        scale=scale,
    )
    return result.permute(2, 0, 1, 3).flatten(1, 2)


def _gather(cache: torch.Tensor, block_ids: torch.Tensor, context_len: int) -> torch.Tensor:
    """The sequence's rows of `cache` in order: [1, num_kv_heads, context_len, head_dim]."""
    rows = cache.index_select(0, block_ids).flatten(0, 1)[:context_len]
    return rows.transpose(0, 1).unsqueeze(0)
