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
    *,
    window: int | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """softmax(scale * q kᵀ) v over each sequence's own keys up to the query's position.

    query: [num_tokens, num_heads, head_dim], the sequences of the step one after another;
        query head h reads KV head h // (num_heads / num_kv_heads)
    key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim], this step's tokens
        already stored
    window: each query sees so many keys at most, its own the last; one of those `metadata` was
        built for. Blocks that all lie before the window are not read.
    soft_cap: x = scale * q kᵀ becomes soft_cap * tanh(x / soft_cap)
    returns [num_tokens, num_heads, head_dim] in the type of `query`; sums are float32

    Sequences are computed one at a time, so that no result depends on what else is in the step.

    Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with
    PagedAttention"; Ainslie et al. 2023, "GQA: Training Generalized Multi-Query Transformer
    Models from Multi-Head Checkpoints"; windows: Beltagy et al. 2020, "Longformer: The
    Long-Document Transformer"; soft-caps: Gemma Team 2024, "Gemma 2: Improving Open Language
    Models at a Practical Size".
    """
    output = torch.empty_like(query)
    num_threads = torch.get_num_threads()
    try:
        for span in metadata.spans if window is None else metadata.windowed_spans[window]:
            rows = slice(span.query_start, span.query_start + span.num_queries)
            work = query[rows].numel() * span.num_keys
            torch.set_num_threads(num_threads if work >= _MIN_SHARED_WORK else 1)
            output[rows] = _attend(query[rows], key_cache, value_cache, span, scale, soft_cap)
    finally:
        torch.set_num_threads(num_threads)
    return output


def _attend(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    span: SequenceSpan,
    scale: float,
    soft_cap: float | None,
) -> torch.Tensor:
    """One sequence: query and result [num_queries, num_heads, head_dim]."""
    num_heads, head_dim = query.shape[1:]
    num_kv_heads = key_cache.shape[2]
    group = num_heads // num_kv_heads
    keys = _gather(key_cache, span)
    values = _gather(value_cache, span)
    if soft_cap is not None:
        return _attend_capped(query, keys, values, span, scale, soft_cap)
    if span.num_queries == 1:
        # The heads of a group stand in for query positions: no key is repeated.
        queries = query.view(1, num_kv_heads, group, head_dim)
        result = F.scaled_dot_product_attention(queries, keys, values, scale=scale)
        return result.view(1, num_heads, head_dim)
    queries = query.view(-1, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    shared = (num_kv_heads, group, span.num_keys, head_dim)
    result = F.scaled_dot_product_attention(
        queries,
        keys.transpose(0, 1).expand(shared),
        values.transpose(0, 1).expand(shared),
        attn_mask=span.mask,
        is_causal=span.mask is None,
        scale=scale,
    )
    return result.permute(2, 0, 1, 3).flatten(1, 2)


def _attend_capped(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    span: SequenceSpan,
    scale: float,
    soft_cap: float,
) -> torch.Tensor:
    """As `_attend`, from the formula: no fused kernel caps.

    keys, values: [1, num_kv_heads, num_keys, head_dim]
    """
    num_heads, head_dim = query.shape[1:]
    queries = query.view(span.num_queries, keys.shape[1], -1, head_dim).permute(1, 2, 0, 3)
    scores = (queries @ keys.transpose(0, 1).mT).float() * scale
    scores = soft_cap * torch.tanh(scores / soft_cap)
    if span.mask is not None:
        scores += span.mask
    elif span.num_queries > 1:
        future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        scores.masked_fill_(future, float("-inf"))
    result = scores.softmax(dim=-1).to(query.dtype) @ values.transpose(0, 1)
    return result.permute(2, 0, 1, 3).reshape(span.num_queries, num_heads, head_dim)


def _gather(cache: torch.Tensor, span: SequenceSpan) -> torch.Tensor:
    """The span's rows of `cache` in order: [1, num_kv_heads, num_keys, head_dim]."""
    rows = cache.index_select(0, span.block_ids).flatten(0, 1)
    rows = rows[span.first_key : span.first_key + span.num_keys]
    return rows.transpose(0, 1).unsqueeze(0)
