"""`BlockPool`: every KV block, which of them are free, and which are in the prefix cache.

Owns ref counts, eviction and the map from hash to block. Does not know requests, tokens or
scheduling. The only caller is `KVCacheManager`.
"""

from __future__ import annotations

from collections.abc import Iterable

from refectory_server.core.block import Block, BlockHash, FreeBlockQueue


class BlockPool:
    """A block is free when no table holds it (`ref_count` 0), cached while it has a hash.

    Both at once is the usual state of a finished request's blocks: a prefix hit takes them back,
    and an allocation that reaches them evicts them.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}; a pool needs at least 1")
        self.blocks = tuple(Block(block_id) for block_id in range(num_blocks))
        self._free = FreeBlockQueue(self.blocks)
        self._cached: dict[BlockHash, Block] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def free_block_ids(self) -> tuple[int, ...]:
        """In the order in which they would be allocated. O(num_blocks)."""
        return tuple(block.block_id for block in self._free)

    def allocate(self, num_blocks: int) -> list[Block]:
        """Take blocks from the head of the free list, each with one ref and no hash.

        All or none: raises `RuntimeError` when fewer are free. Callers look at `num_free` first.
        """
        if num_blocks > self.num_free:
            raise RuntimeError(
                f"{num_blocks} blocks asked for; {self.num_free} of {len(self.blocks)} are free"
            )
        taken = [self._free.popleft() for _ in range(num_blocks)]
        for block in taken:
            self.uncache(block)
            block.ref_count = 1
        return taken

    def touch(self, blocks: Iterable[Block]) -> None:
        """Take one more ref on each; those that were free leave the free list."""
        for block in blocks:
            if block.ref_count == 0:
                self._free.remove(block)
            block.ref_count += 1

    def free(self, blocks: Iterable[Block]) -> None:
        """Drop one ref on each; those left with none become free.

        Cached blocks go to the tail of the free list, in the order given, the others to the
        head. Callers pass a request's last block first: the end of a chain is then evicted
        before its beginning, without which no later block of it could be found.
        """
        for block in blocks:
            if block.ref_count < 1:
                raise RuntimeError(f"{block} was freed more often than taken")
            block.ref_count -= 1
            if block.ref_count:
                continue
            if block.block_hash is None:
                self._free.prepend(block)
            else:
                self._free.append(block)

    def cache(self, block: Block, block_hash: BlockHash) -> None:
        """Let others find a full, computed block. The first with a hash wins."""
        if block_hash not in self._cached:
            block.set_hash(block_hash)
            self._cached[block_hash] = block

    def uncache(self, block: Block) -> None:
        """Let nobody find the block again; its holders keep it."""
        if block.block_hash is not None:
            del self._cached[block.block_hash]
            block.reset_hash()

    def get_cached(self, block_hash: BlockHash) -> Block | None:
        return self._cached.get(block_hash)

    def check_integrity(self) -> None:
        """Raises `RuntimeError` unless free and held blocks are the pool and the cache agrees."""
        free = set(self.free_block_ids)
        unheld = {block.block_id for block in self.blocks if block.ref_count == 0}
        if free != unheld or len(free) != self.num_free:
            raise RuntimeError(
                f"free list holds {sorted(free)} (length {self.num_free}); "
                f"without a ref are {sorted(unheld)}"
            )
        hashed = {block.block_hash: block for block in self.blocks if block.block_hash is not None}
        if hashed != self._cached:
            raise RuntimeError(
                f"{len(hashed)} blocks carry a hash, the cache knows {len(self._cached)}: "
                f"{list(hashed.values())} against {list(self._cached.values())}"
            )
