"""`KVCacheManager`: which request holds which blocks.

Owns the block tables, admission by free blocks, prefix hits, and copy on write. Does not know
queues, policy or tensors. The scheduler calls it and owns every field of `Request`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from refectory_server.core.block import Block
from refectory_server.core.block_pool import BlockPool
from refectory_server.core.block_table import BlockTable
from refectory_server.core.request import Request
from refectory_server.core.scheduler_output import BlockCopy


@dataclass(frozen=True, slots=True)
class SlotAllocation:
    """Room for a step's tokens. `block_ids` is the whole table if it changed, else None."""

    block_ids: tuple[int, ...] | None = None
    copies: tuple[BlockCopy, ...] = ()


_UNCHANGED = SlotAllocation()


def watermark_blocks(num_blocks: int, watermark: float) -> int:
    """Blocks that admission leaves free, for the running requests to grow into.

    Rounded up, but of a single block nothing can be kept, or nothing could ever run.
    """
    return min(math.ceil(watermark * num_blocks), num_blocks - 1)


def usable_tokens(num_blocks: int, block_size: int, watermark: float) -> int:
    """Tokens that one request alone can hold: the pool less the watermark's blocks."""
    return (num_blocks - watermark_blocks(num_blocks, watermark)) * block_size


class KVCacheManager:
    """Block tables of the running requests, over one pool.

    A running request's tokens, and who may write where::

        |<----------------------------- num_tokens ----------------------------->|
        |<----------- num_computed_tokens ---------->|<-- this step's n -->|     |
        |  prefix hit or fork  |  own, full, offered |  own, being filled        |
        |  ref_count >= 1      |  to the cache after |  ref_count == 1           |
        |  never written       |  their step         |  no hash                  |

    Blocks are reserved at admission for every token known then; a running request adds one when
    its output grows past the last. A block in the range to be written that others hold too (the
    end of a forked prompt) is copied first. Waiting requests hold nothing.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        watermark: float = 0.01,
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._watermark = watermark
        self.num_watermark_blocks = watermark_blocks(num_blocks, watermark)
        self.num_prefix_query_tokens = 0
        """Tokens of all first admissions; readmitted and forked requests do not count."""
        self.num_prefix_hit_tokens = 0
        """Of those, found in the cache."""
        self._tables: dict[str, BlockTable] = {}

    @property
    def num_free_blocks(self) -> int:
        return self.pool.num_free

    @property
    def max_request_tokens(self) -> int:
        """Tokens that one request alone can hold."""
        return usable_tokens(self.num_blocks, self.block_size, self._watermark)

    @property
    def num_holders(self) -> int:
        """Requests that hold blocks. O(requests)."""
        return sum(bool(table.blocks) for table in self._tables.values())

    def block_ids(self, request: Request) -> tuple[int, ...]:
        """The request's block table; empty when it holds none."""
        table = self._tables.get(request.request_id)
        return () if table is None else table.block_ids

    def get_computed_blocks(self, request: Request) -> list[Block]:
        """The longest cached chain of the request's first blocks. Takes no ref.

        It never covers the last known token: that one is computed to get logits to sample from.
        Hashes are kept from one call to the next, as the head of the queue asks every step.
        """
        hits: list[Block] = []
        if not self.enable_prefix_caching:
            return hits
        table = self._tables.setdefault(request.request_id, BlockTable())
        for index in range((request.num_tokens - 1) // self.block_size):
            block = self.pool.get_cached(table.hash_at(index, request, self.block_size))
            if block is None:
                break
            hits.append(block)
        return hits

    def admit(self, request: Request) -> int | None:
        """Reserve blocks for every known token, cached ones first, the watermark kept free.

        Returns how many tokens those hold already; None, and nothing is taken, without room.
        """
        hits = self.get_computed_blocks(request)
        num_new = self._num_blocks_for(request.num_tokens) - len(hits)
        # Hits that nobody holds stand on the free list themselves: they are no room.
        num_hits_free = sum(block.ref_count == 0 for block in hits)
        if self.pool.num_free - num_hits_free < num_new + self.num_watermark_blocks:
            return None
        self.pool.touch(hits)
        table = self._tables.setdefault(request.request_id, BlockTable())
        table.extend(hits)
        table.extend(self.pool.allocate(num_new))
        table.num_registered = len(hits)
        num_hit_tokens = len(hits) * self.block_size
        if self.enable_prefix_caching and request.num_preemptions == 0:
            self.num_prefix_query_tokens += request.num_tokens
            self.num_prefix_hit_tokens += num_hit_tokens
        return num_hit_tokens

    def fork(self, parent: Request, child: Request) -> int | None:
        """Share the blocks of the parent's computed prompt, the last one included.

        Returns how many of the child's tokens those hold: all but the last of the prompt, which
        the child computes for its logits. None, and nothing is taken, without room for the copy
        of the last block that this first write needs. The child has the parent's prompt.
        """
        if self.pool.num_free < 1 + self.num_watermark_blocks:
            return None
        num_shared = self._num_blocks_for(parent.num_prompt_tokens)
        shared = self._tables[parent.request_id].blocks[:num_shared]
        self.pool.touch(shared)
        table = self._tables[child.request_id] = BlockTable()
        table.extend(shared)
        num_computed_tokens = parent.num_prompt_tokens - 1
        table.num_registered = num_computed_tokens // self.block_size
        return num_computed_tokens

    def allocate_slots(self, request: Request, num_new_tokens: int) -> SlotAllocation | None:
        """Make the slots of the next `num_new_tokens` tokens the request's own.

        Adds blocks (the watermark is theirs to use) and copies shared ones that would be
        written. None, and nothing is taken, when too few are free.
        """
        table = self._tables[request.request_id]
        blocks = table.blocks
        first = request.num_computed_tokens // self.block_size
        end = self._num_blocks_for(request.num_computed_tokens + num_new_tokens)
        if end == first + 1 <= len(blocks) and blocks[first].ref_count == 1:
            return _UNCHANGED  # nearly every decode
        num_new = max(0, end - len(blocks))
        shared = [i for i in range(first, min(end, len(blocks))) if blocks[i].ref_count > 1]
        if not num_new and not shared:
            return _UNCHANGED
        if self.pool.num_free < num_new + len(shared):
            return None
        copies = tuple(self._copy_on_write(table, index) for index in shared)
        table.extend(self.pool.allocate(num_new))
        return SlotAllocation(table.block_ids, copies)

    def cache_computed(self, request: Request) -> None:
        """Offer the blocks that `num_computed_tokens` now fills to the prefix cache.

        Called after the step that computed them, when it is known not to have failed.
        """
        if not self.enable_prefix_caching:
            return
        table = self._tables[request.request_id]
        num_full = request.num_computed_tokens // self.block_size
        for index in range(table.num_registered, num_full):
            block_hash = table.hash_at(index, request, self.block_size)
            self.pool.cache(table.blocks[index], block_hash)
            table.num_registered = index + 1

    def free(self, request: Request, *, discard: bool = False) -> None:
        """Give back all that the request holds; nothing if it holds nothing.

        With `discard` its blocks leave the prefix cache too: a failed request's KV is suspect.
        """
        table = self._tables.pop(request.request_id, None)
        if table is None:
            return
        if discard:
            for block in table.blocks:
                self.pool.uncache(block)
        self.pool.free(reversed(table.blocks))

    def check_integrity(self) -> None:
        """Raises `RuntimeError` unless every ref count is the number of tables with the block."""
        self.pool.check_integrity()
        holders = Counter(
            block.block_id for table in self._tables.values() for block in table.blocks
        )
        for block in self.pool.blocks:
            if block.ref_count != holders[block.block_id]:
                raise RuntimeError(f"{block} is in {holders[block.block_id]} tables")
        num_held = len(holders)
        if self.num_free_blocks + num_held != self.num_blocks:
            raise RuntimeError(
                f"{self.num_free_blocks} free + {num_held} held is not {self.num_blocks} blocks"
            )
        for request_id, table in self._tables.items():
            if len(set(table.block_ids)) != len(table.blocks):
                raise RuntimeError(f"request {request_id} holds a block twice: {table.block_ids}")

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _copy_on_write(self, table: BlockTable, index: int) -> BlockCopy:
        shared = table.blocks[index]
        (own,) = self.pool.allocate(1)
        table.replace(index, own)
        self.pool.free((shared,))
        return BlockCopy(shared.block_id, own.block_id)
