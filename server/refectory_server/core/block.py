"""`Block`, its hash, and the list of free blocks.

Owns one block's bookkeeping and the O(1) free list. Does not know requests, nor when a block is
taken or given back: `BlockPool` decides that.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NewType

BlockHash = NewType("BlockHash", bytes)
"""sha256 of a full block's tokens and of everything before them: equal hash, equal KV."""

_HEADER = struct.Struct("<??q?QQ")


def hash_block(
    parent: BlockHash | None,
    token_ids: Sequence[int],
    lora_id: int | None,
    cache_salt: str | None,
) -> BlockHash:
    """Hash of a full block, chained to the block before it (`parent`, None for the first).

    The header gives the presence or length of every part, so that no two different inputs are
    the same bytes. LoRA id and salt are in each hash: equal tokens under another adapter have
    other KV, and a tenant's salt keeps its blocks to itself.
    """
    # A salt out of JSON may hold lone surrogates, which plain UTF-8 refuses.
    salt = b"" if cache_salt is None else cache_salt.encode("utf-8", "surrogatepass")
    header = _HEADER.pack(
        parent is not None,
        lora_id is not None,
        lora_id or 0,
        cache_salt is not None,
        len(salt),
        len(token_ids),
    )
    tokens = struct.pack(f"<{len(token_ids)}q", *token_ids)
    return BlockHash(hashlib.sha256(b"".join((header, parent or b"", salt, tokens))).digest())


class Block:
    """A fixed run of KV slots. `ref_count` is the number of block tables that hold it."""

    __slots__ = ("_block_hash", "block_id", "next_free", "prev_free", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self._block_hash: BlockHash | None = None
        self.prev_free: Block | None = None
        self.next_free: Block | None = None

    @property
    def block_hash(self) -> BlockHash | None:
        """Set while the block is in the prefix cache: full, computed, first of its content."""
        return self._block_hash

    def set_hash(self, block_hash: BlockHash) -> None:
        """Raises `RuntimeError` when the block has one: its content may not change under it."""
        if self._block_hash is not None:
            raise RuntimeError(
                f"block {self.block_id} has hash {self._block_hash.hex()[:12]} and was given "
                f"{block_hash.hex()[:12]}; a hash is reset before it is set anew"
            )
        self._block_hash = block_hash

    def reset_hash(self) -> None:
        self._block_hash = None

    def __repr__(self) -> str:
        cached = "" if self._block_hash is None else f", hash {self._block_hash.hex()[:12]}"
        return f"Block({self.block_id}, ref_count {self.ref_count}{cached})"


class FreeBlockQueue:
    """Free blocks in the order in which they are taken: the head goes first.

    At first by block id. Later, blocks whose content is worth nothing come back at the head and
    cached ones at the tail, so that the cached block that was free for longest is evicted first
    and none is while an empty one is left. A doubly linked list through the blocks themselves:
    a prefix hit takes its block out of the middle in O(1), and nothing is allocated.
    """

    __slots__ = ("_head", "_num_blocks", "_tail")

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._head: Block | None = None
        self._tail: Block | None = None
        self._num_blocks = 0
        for block in blocks:
            self.append(block)

    def __len__(self) -> int:
        return self._num_blocks

    def __iter__(self) -> Iterator[Block]:
        """Head to tail."""
        block = self._head
        while block is not None:
            yield block
            block = block.next_free

    def popleft(self) -> Block:
        """Raises `IndexError` when there is none."""
        block = self._head
        if block is None:
            raise IndexError("no free block")
        self.remove(block)
        return block

    def append(self, block: Block) -> None:
        """At the tail: taken last."""
        self._check_outside(block)
        block.prev_free = self._tail
        if self._tail is None:
            self._head = block
        else:
            self._tail.next_free = block
        self._tail = block
        self._num_blocks += 1

    def prepend(self, block: Block) -> None:
        """At the head: taken next."""
        self._check_outside(block)
        block.next_free = self._head
        if self._head is None:
            self._tail = block
        else:
            self._head.prev_free = block
        self._head = block
        self._num_blocks += 1

    def remove(self, block: Block) -> None:
        """Take it out, wherever it stands."""
        if not self._holds(block):
            raise RuntimeError(f"{block} is not free")
        if block.prev_free is None:
            self._head = block.next_free
        else:
            block.prev_free.next_free = block.next_free
        if block.next_free is None:
            self._tail = block.prev_free
        else:
            block.next_free.prev_free = block.prev_free
        block.prev_free = block.next_free = None
        self._num_blocks -= 1

    def _holds(self, block: Block) -> bool:
        return block.prev_free is not None or block is self._head

    def _check_outside(self, block: Block) -> None:
        if self._holds(block):
            raise RuntimeError(f"{block} is free already")
