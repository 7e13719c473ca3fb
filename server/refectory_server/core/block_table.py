"""`BlockTable`: the ordered blocks of one request, and the chain of its block hashes.

Owns both lists. Does not know the pool: `KVCacheManager` takes and gives back the blocks.
"""

from __future__ import annotations

from collections.abc import Iterable

from refectory_server.core.block import Block, BlockHash, hash_block
from refectory_server.core.request import Request


class BlockTable:
    """Slot of token i: block `i // block_size` of the table, offset `i % block_size`."""

    __slots__ = ("_block_ids", "_hashes", "blocks", "num_registered")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.num_registered = 0
        """Leading blocks that came from the cache or were offered to it."""
        # Kept beside the blocks because a decoding request's ids are sent each time it grows.
        self._block_ids: list[int] = []
        self._hashes: list[BlockHash] = []

    @property
    def block_ids(self) -> tuple[int, ...]:
        return tuple(self._block_ids)

    def extend(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            self.blocks.append(block)
            self._block_ids.append(block.block_id)

    def replace(self, index: int, block: Block) -> None:
        self.blocks[index] = block
        self._block_ids[index] = block.block_id

    def hash_at(self, index: int, request: Request, block_size: int) -> BlockHash:
        """Hash of the request's block `index`, whose tokens are all known; computed once."""
        for i in range(len(self._hashes), index + 1):
            tokens = request.token_ids[i * block_size : (i + 1) * block_size]
            parent = self._hashes[-1] if self._hashes else None
            self._hashes.append(hash_block(parent, tokens, request.lora_id, request.cache_salt))
        return self._hashes[index]
