"""The pool: order of allocation, LRU eviction, first hash wins, conservation."""

from __future__ import annotations

import pytest

from refectory_server.core.block import Block, BlockHash
from refectory_server.core.block_pool import BlockPool


def a_hash(n: int) -> BlockHash:
    return BlockHash(bytes([n]) * 32)


def block_ids(blocks: list[Block]) -> list[int]:
    return [block.block_id for block in blocks]


def test_allocation_goes_by_block_id_at_first() -> None:
    pool = BlockPool(5)
    taken = pool.allocate(3)
    assert block_ids(taken) == [0, 1, 2]
    assert [block.ref_count for block in pool.blocks] == [1, 1, 1, 0, 0]
    assert (pool.num_free, pool.free_block_ids) == (2, (3, 4))
    pool.check_integrity()


def test_too_large_an_allocation_takes_nothing() -> None:
    pool = BlockPool(3)
    pool.allocate(1)
    with pytest.raises(RuntimeError, match="3 blocks asked for; 2 of 3 are free"):
        pool.allocate(3)
    assert pool.free_block_ids == (1, 2)
    pool.check_integrity()


def test_a_pool_needs_a_block() -> None:
    with pytest.raises(ValueError, match="num_blocks is 0; a pool needs at least 1"):
        BlockPool(0)


def test_unhashed_blocks_come_back_at_the_head() -> None:
    pool = BlockPool(4)
    taken = pool.allocate(3)
    pool.free(reversed(taken))
    assert pool.free_block_ids == (0, 1, 2, 3)


def test_cached_blocks_come_back_at_the_tail_end_of_the_chain_first() -> None:
    pool = BlockPool(5)
    taken = pool.allocate(3)
    pool.cache(taken[0], a_hash(1))
    pool.cache(taken[1], a_hash(2))
    pool.free(reversed(taken))
    assert pool.free_block_ids == (2, 3, 4, 1, 0)
    pool.check_integrity()


def test_the_cached_block_free_for_longest_is_evicted_first() -> None:
    pool = BlockPool(3)
    first, second, third = pool.allocate(3)
    for block in (first, second, third):
        pool.cache(block, a_hash(block.block_id))
    pool.free([second])
    pool.free([first])
    pool.free([third])
    assert block_ids(pool.allocate(2)) == [1, 0]
    assert pool.get_cached(a_hash(0)) is None
    assert pool.get_cached(a_hash(1)) is None
    assert pool.get_cached(a_hash(2)) is third
    assert first.block_hash is None
    pool.check_integrity()


def test_touch_takes_a_block_out_of_the_middle_of_the_free_list() -> None:
    pool = BlockPool(4)
    taken = pool.allocate(4)
    for block in taken:
        pool.cache(block, a_hash(block.block_id))
    pool.free(taken)
    pool.touch([taken[2], taken[1]])
    pool.touch([taken[1]])
    assert pool.free_block_ids == (0, 3)
    assert [block.ref_count for block in pool.blocks] == [0, 2, 1, 0]
    pool.free([taken[1]])
    assert pool.num_free == 2
    pool.free([taken[1]])
    assert list(pool.free_block_ids) == [0, 3, 1]
    pool.check_integrity()


def test_a_ref_is_dropped_once() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    pool.free([block])
    with pytest.raises(
        RuntimeError, match=r"Block\(0, ref_count 0\) was freed more often than taken"
    ):
        pool.free([block])


def test_the_first_block_with_a_hash_wins() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.cache(first, a_hash(1))
    pool.cache(second, a_hash(1))
    assert pool.get_cached(a_hash(1)) is first
    assert second.block_hash is None
    pool.check_integrity()


def test_an_uncached_block_is_found_by_nobody_and_kept_by_its_holder() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.cache(block, a_hash(1))
    pool.uncache(block)
    pool.uncache(block)
    assert pool.get_cached(a_hash(1)) is None
    assert block.ref_count == 1
    pool.cache(block, a_hash(2))
    assert pool.get_cached(a_hash(2)) is block
    pool.check_integrity()


def test_integrity_finds_a_lost_block() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    block.ref_count = 0
    with pytest.raises(RuntimeError, match=r"holds \[1\] \(length 1\); without a ref are \[0, 1\]"):
        pool.check_integrity()


def test_integrity_finds_a_hash_that_the_cache_does_not_know() -> None:
    pool = BlockPool(2)
    pool.blocks[1].set_hash(a_hash(1))
    with pytest.raises(RuntimeError, match="1 blocks carry a hash, the cache knows 0"):
        pool.check_integrity()
