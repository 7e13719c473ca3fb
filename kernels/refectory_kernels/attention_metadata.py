"""`AttentionMetadata`: where each sequence of a step has its tokens and its KV blocks.

Built once per step, read by every layer. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """One sequence of the step: its query rows are the last `num_queries` of its keys' tokens."""

    query_start: int
    """Its first row among the step's packed tokens."""
    num_queries: int
    num_keys: int
    """Keys that any of its queries sees, this step's included."""
    block_ids: torch.Tensor
    """The blocks those keys are in, [num_blocks], int64."""
    first_key: int
    """Offset of the first key in the first block; not 0 only where a window starts."""
    mask: torch.Tensor | None
    """[num_queries, num_keys], 0 or -inf. None where no mask is needed, or plain causal does."""


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """The spans in row order, and the slot of every packed token."""

    spans: tuple[SequenceSpan, ...]
    windowed_spans: Mapping[int, tuple[SequenceSpan, ...]]
    """For each window size (in tokens), the spans of layers whose tokens see no further back."""
    slot_mapping: torch.Tensor
    """[num_tokens], int64: block_id * block_size + offset."""


def build_attention_metadata(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    block_tables: Sequence[torch.Tensor],
    block_size: int,
    dtype: torch.dtype,
    windows: Sequence[int] = (),
) -> AttentionMetadata:
    """Metadata of a step; the three sequences run in step with each other, one item a sequence.

    query_lens: this step's tokens; context_lens: keys in all, those tokens included
    block_tables: [at least ceil(context_len / block_size)] each, int64; they may be longer
    dtype: that of the queries, for the masks
    windows: the sizes that some layer has
    """
    spans: list[SequenceSpan] = []
    windowed: dict[int, list[SequenceSpan]] = {window: [] for window in windows}
    slots: list[torch.Tensor] = []
    query_start = 0
    for num_queries, context_len, table in zip(query_lens, context_lens, block_tables, strict=True):
        first = context_len - num_queries
        num_blocks = -(-context_len // block_size)
        if num_queries < 1 or first < 0:
            raise ValueError(f"{num_queries} queries do not fit a context of {context_len} tokens")
        if num_blocks > len(table):
            raise ValueError(
                f"a context of {context_len} tokens needs {num_blocks} blocks of {block_size}; "
                f"the block table has {len(table)}"
            )
        if num_queries == 1:
            slots.append(table[first // block_size, None] * block_size + first % block_size)
        else:
            positions = torch.arange(first, context_len)
            slots.append(table[positions // block_size] * block_size + positions % block_size)
        span = SequenceSpan(
            query_start,
            num_queries,
            context_len,
            table[:num_blocks],
            0,
            _late_causal_mask(num_queries, context_len, dtype),
        )
        spans.append(span)
        for window, window_spans in windowed.items():
            window_spans.append(_narrow(span, window, block_size, dtype))
        query_start += num_queries
    return AttentionMetadata(
        tuple(spans),
        {window: tuple(window_spans) for window, window_spans in windowed.items()},
        torch.cat(slots),
    )


def _narrow(span: SequenceSpan, window: int, block_size: int, dtype: torch.dtype) -> SequenceSpan:
    """The span of a layer in which every query sees the last `window` keys up to its own."""
    if span.num_keys <= window:
        return span
    first_key = max(span.num_keys - span.num_queries - window + 1, 0)
    num_keys = span.num_keys - first_key
    return SequenceSpan(
        span.query_start,
        span.num_queries,
        num_keys,
        span.block_ids[first_key // block_size :],
        first_key % block_size,
        _window_mask(span.num_queries, num_keys, window, dtype),
    )


def _late_causal_mask(num_queries: int, num_keys: int, dtype: torch.dtype) -> torch.Tensor | None:
    """Query i sees the keys up to num_keys - num_queries + i."""
    first = num_keys - num_queries
    if num_queries == 1 or first == 0:
        return None
    mask = torch.full((num_queries, num_keys), float("-inf"), dtype=dtype)
    return mask.triu_(first + 1)


def _window_mask(
    num_queries: int, num_keys: int, window: int, dtype: torch.dtype
) -> torch.Tensor | None:
    """Query i sees `window` keys, the last of them key num_keys - num_queries + i."""
    if num_queries == 1:
        return None
    first = num_keys - num_queries
    hidden = torch.full((num_queries, num_keys), float("-inf"), dtype=dtype)
    return hidden.triu(first + 1) + hidden.tril(first - window)
