"""Block hashes tell different contents apart; the free list keeps its order in O(1)."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from refectory_server.core.block import Block, BlockHash, FreeBlockQueue, hash_block


def make_queue(num_blocks: int) -> tuple[list[Block], FreeBlockQueue]:
    blocks = [Block(i) for i in range(num_blocks)]
    return blocks, FreeBlockQueue(blocks)


def ids(queue: FreeBlockQueue) -> list[int]:
    return [block.block_id for block in queue]


def test_a_hash_is_sha256_of_header_parent_salt_and_tokens() -> None:
    parent = BlockHash(bytes(range(32)))
    header = b"\x01\x01" + (7).to_bytes(8, "little") + b"\x01"
    lengths = (3).to_bytes(8, "little") + (2).to_bytes(8, "little")
    tokens = (5).to_bytes(8, "little") + (6).to_bytes(8, "little")
    expected = hashlib.sha256(header + lengths + parent + b"abc" + tokens).digest()
    assert hash_block(parent, [5, 6], 7, "abc") == expected


def test_a_hash_depends_on_every_part_and_on_nothing_else() -> None:
    parent = hash_block(None, [1, 2], None, None)
    other_parent = hash_block(None, [2, 1], None, None)
    parts = list(
        itertools.product(
            (None, parent, other_parent),
            ([1, 2], [2, 1], [1], [1, 2, 0]),
            (None, 0, 1),
            (None, "", "a", "a\x00", "\ud800"),
        )
    )
    hashes = [hash_block(*part) for part in parts]
    assert len(set(hashes)) == len(parts) == 3 * 4 * 3 * 5
    assert [hash_block(*part) for part in parts] == hashes


def test_equal_bytes_split_differently_are_different_hashes() -> None:
    """A salt cannot be chosen so that it and the tokens spell another request's bytes."""
    token_bytes = (65).to_bytes(8, "little").decode()
    assert hash_block(None, [65, 66], None, "") != hash_block(None, [66], None, token_bytes)


def test_a_second_hash_is_refused_until_the_first_is_reset() -> None:
    block = Block(3)
    first, second = BlockHash(b"\x01" * 32), BlockHash(b"\x02" * 32)
    block.set_hash(first)
    with pytest.raises(RuntimeError, match="block 3 has hash 010101010101 and was given 02020202"):
        block.set_hash(second)
    assert block.block_hash == first
    block.reset_hash()
    block.set_hash(second)
    assert block.block_hash == second


def test_blocks_leave_at_the_head() -> None:
    blocks, queue = make_queue(3)
    assert [queue.popleft() for _ in range(3)] == blocks
    assert len(queue) == 0
    with pytest.raises(IndexError, match="no free block"):
        queue.popleft()


def test_append_and_prepend_on_an_empty_queue_and_on_a_full_one() -> None:
    blocks, queue = make_queue(4)
    for _ in range(4):
        queue.popleft()
    queue.append(blocks[2])
    queue.prepend(blocks[0])
    queue.append(blocks[1])
    queue.prepend(blocks[3])
    assert ids(queue) == [3, 0, 2, 1]
    assert len(queue) == 4


@pytest.mark.parametrize(("removed", "left"), [(0, [1, 2]), (1, [0, 2]), (2, [0, 1])])
def test_remove_from_head_middle_and_tail(removed: int, left: list[int]) -> None:
    blocks, queue = make_queue(3)
    queue.remove(blocks[removed])
    assert ids(queue) == left
    queue.append(blocks[removed])
    assert ids(queue) == [*left, removed]
    assert len(queue) == 3


def test_remove_of_the_only_block_leaves_a_usable_queue() -> None:
    blocks, queue = make_queue(1)
    queue.remove(blocks[0])
    assert ids(queue) == []
    queue.prepend(blocks[0])
    assert ids(queue) == [0]


def test_a_block_is_in_the_queue_once() -> None:
    blocks, queue = make_queue(1)
    with pytest.raises(RuntimeError, match=r"Block\(0, ref_count 0\) is free already"):
        queue.append(blocks[0])
    with pytest.raises(RuntimeError, match="is free already"):
        queue.prepend(blocks[0])
    queue.popleft()
    with pytest.raises(RuntimeError, match="is not free"):
        queue.remove(blocks[0])
