"""`AttentionMetadata`: where each sequence of a step has its tokens and its KV blocks.

Built once per step, read by every layer. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """One sequence of the step: its query rows are the last `num_queries` of its context."""

    query_start: int
    """Its first row among the step's packed tokens."""
    num_queries: int
    context_len: int
    """Keys it sees: everything computed before, and this step's tokens."""
    block_ids: torch.Tensor
    """[ceil(context_len / block_size)], int64."""
    mask: torch.Tensor | None
    """[num_queries, context_len], 0 or -inf. None where no mask is needed, or plain causal does."""


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """The spans in row order, and the slot of every packed token."""

    spans: tuple[SequenceSpan, ...]
    slot_mapping: torch.Tensor
    """[num_tokens], int64: block_id * block_size + offset."""


def build_attention_metadata(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    block_tables: Sequence[torch.Tensor],
    block_size: int,
    dtype: torch.dtype,
) -> AttentionMetadata:
    """Metadata of a step; the three sequences run in step with each other, one item a sequence.

    query_lens: this step's tokens; context_lens: keys in all, those tokens included
    block_tables: [at least ceil(context_len / block_size)] each, int64; they may be longer
    dtype: that of the queries, for the masks
    """
    spans: list[SequenceSpan] = []
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
        spans.append(
            SequenceSpan(
                query_start,
                num_queries,
                context_len,
                table[:num_blocks],
                _late_causal_mask(num_queries, context_len, dtype),
            )
        )
        query_start += num_queries
    return AttentionMetadata(tuple(spans), torch.cat(slots))


def _late_causal_mask(
    num_queries: int, context_len: int, dtype: torch.dtype
) -> torch.Tensor | None:
    """Query i sees the keys up to context_len - num_queries + i."""
    first = context_len - num_queries
    if num_queries == 1 or first == 0:
        return None
    mask = torch.full((num_queries, context_len), float("-inf"), dtype=dtype)
    return mask.triu_(first + 1)
