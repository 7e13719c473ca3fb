"""Block tables: admission, prefix hits, growth, forks, copy on write. Exact ids and refs."""

from __future__ import annotations

import pytest

from refectory_server.core.block import hash_block
from refectory_server.core.kv_cache_manager import KVCacheManager, SlotAllocation, usable_tokens
from refectory_server.core.request import Request
from refectory_server.core.scheduler_output import BlockCopy
from refectory_server.testing.requests import make_request


def make_kv(
    num_blocks: int = 10, *, prefix_caching: bool = True, watermark: float = 0.0
) -> KVCacheManager:
    return KVCacheManager(num_blocks, 4, enable_prefix_caching=prefix_caching, watermark=watermark)


def ref_counts(kv: KVCacheManager) -> list[int]:
    return [block.ref_count for block in kv.pool.blocks]


def compute(kv: KVCacheManager, request: Request, num_tokens: int) -> None:
    """What a step does for one request: slots, then the result."""
    assert kv.allocate_slots(request, num_tokens) is not None
    request.num_computed_tokens += num_tokens
    kv.cache_computed(request)
    kv.check_integrity()


def run_prompt(kv: KVCacheManager, request: Request) -> None:
    num_hit_tokens = kv.admit(request)
    assert num_hit_tokens is not None
    request.num_computed_tokens = num_hit_tokens
    compute(kv, request, request.num_tokens - num_hit_tokens)


def test_admission_reserves_every_known_token() -> None:
    kv = make_kv()
    request = make_request("a", 9)
    assert kv.admit(request) == 0
    assert kv.block_ids(request) == (0, 1, 2)
    assert ref_counts(kv) == [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert kv.num_free_blocks == 7
    kv.check_integrity()


def test_admission_of_a_preempted_request_covers_its_output() -> None:
    kv = make_kv()
    request = make_request("a", 8)
    request.append_output_token(1)
    assert kv.admit(request) == 0
    assert kv.block_ids(request) == (0, 1, 2)


def test_admission_keeps_the_watermark_free() -> None:
    kv = make_kv(10, watermark=0.11)
    assert kv.num_watermark_blocks == 2
    assert kv.max_request_tokens == 32
    assert kv.admit(make_request("a", 16)) == 0
    too_long = make_request("b", 17)
    assert kv.admit(too_long) is None
    assert kv.block_ids(too_long) == ()
    assert kv.num_free_blocks == 6
    assert kv.admit(make_request("c", 16)) == 0
    assert kv.num_free_blocks == 2
    assert kv.admit(make_request("d", 1)) is None
    kv.check_integrity()


@pytest.mark.parametrize(
    ("num_blocks", "watermark", "kept"),
    [(1, 0.01, 0), (2, 0.01, 1), (100, 0.01, 1), (101, 0.01, 2)],
)
def test_the_watermark_rounds_up_but_leaves_a_block_to_run_in(
    num_blocks: int, watermark: float, kept: int
) -> None:
    assert make_kv(num_blocks, watermark=watermark).num_watermark_blocks == kept


@pytest.mark.parametrize(
    ("num_blocks", "watermark", "expected"),
    [(100, 0.01, 1584), (100, 0.0, 1600), (101, 0.01, 1584), (1, 0.01, 16), (10, 0.5, 80)],
)
def test_usable_tokens_leave_the_watermark_free(
    num_blocks: int, watermark: float, expected: int
) -> None:
    assert usable_tokens(num_blocks, 16, watermark) == expected


def test_full_computed_blocks_carry_the_chain_of_hashes() -> None:
    kv = make_kv()
    request = make_request("a", 10, lora_id=3, cache_salt="s")
    run_prompt(kv, request)
    first = hash_block(None, [0, 1, 2, 3], 3, "s")
    second = hash_block(first, [4, 5, 6, 7], 3, "s")
    assert [block.block_hash for block in kv.pool.blocks[:4]] == [first, second, None, None]
    for token_id in (10, 11):
        request.append_output_token(token_id)
    compute(kv, request, 2)
    assert kv.pool.blocks[2].block_hash == hash_block(second, [8, 9, 10, 11], 3, "s")


def test_blocks_are_cached_only_as_far_as_they_are_computed() -> None:
    kv = make_kv()
    request = make_request("a", 12)
    assert kv.admit(request) == 0
    compute(kv, request, 7)
    assert [block.block_hash is not None for block in kv.pool.blocks[:3]] == [True, False, False]
    compute(kv, request, 5)
    assert [block.block_hash is not None for block in kv.pool.blocks[:3]] == [True, True, True]


@pytest.mark.parametrize(
    ("num_tokens", "num_hits"), [(4, 0), (5, 1), (8, 1), (9, 2), (11, 2), (12, 2), (13, 2)]
)
def test_hits_leave_one_token_to_compute(num_tokens: int, num_hits: int) -> None:
    kv = make_kv()
    run_prompt(kv, make_request("a", 11))
    hits = kv.get_computed_blocks(make_request("b", num_tokens))
    assert [block.block_id for block in hits] == [0, 1][:num_hits]
    assert ref_counts(kv) == [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]


def test_running_requests_share_hit_blocks() -> None:
    kv = make_kv()
    first, second = make_request("a", 10), make_request("b", 13)
    run_prompt(kv, first)
    run_prompt(kv, second)
    assert kv.block_ids(second) == (0, 1, 3, 4)
    assert ref_counts(kv) == [2, 2, 1, 1, 1, 0, 0, 0, 0, 0]
    assert (kv.num_prefix_query_tokens, kv.num_prefix_hit_tokens) == (23, 8)
    kv.free(first)
    assert ref_counts(kv) == [1, 1, 0, 1, 1, 0, 0, 0, 0, 0]
    assert kv.pool.free_block_ids == (2, 5, 6, 7, 8, 9)
    kv.check_integrity()


def test_a_finished_request_s_blocks_are_hit_until_evicted_from_the_end() -> None:
    kv = make_kv(5)
    first = make_request("a", 13)
    run_prompt(kv, first)
    kv.free(first)
    assert kv.pool.free_block_ids == (3, 4, 2, 1, 0)
    other = make_request("b", [90 + i for i in range(9)])
    assert kv.admit(other) == 0
    assert kv.block_ids(other) == (3, 4, 2)
    again = make_request("c", 13)
    assert [block.block_id for block in kv.get_computed_blocks(again)] == [0, 1]
    kv.check_integrity()


def test_hits_on_the_free_list_are_not_counted_as_room() -> None:
    kv = make_kv(5)
    first = make_request("a", 9)
    run_prompt(kv, first)
    kv.free(first)
    assert kv.admit(make_request("other", [90, 91, 92, 93, 94])) == 0
    # 3 blocks are free, 2 of them the hits: 3 new ones do not fit beside them, 1 does.
    assert kv.num_free_blocks == 3
    assert kv.admit(make_request("b", 20)) is None
    assert kv.num_free_blocks == 3
    fitting = make_request("c", 12)
    assert kv.admit(fitting) == 8
    assert kv.num_free_blocks == 0
    assert kv.block_ids(fitting)[:2] == (0, 1)
    kv.check_integrity()


@pytest.mark.parametrize(
    ("cache_salt", "lora_id", "num_hit_tokens"),
    [(None, None, 8), ("tenant", None, 0), ("", None, 0), (None, 1, 0), (None, 0, 0)],
)
def test_hits_stay_within_salt_and_adapter(
    cache_salt: str | None, lora_id: int | None, num_hit_tokens: int
) -> None:
    kv = make_kv()
    run_prompt(kv, make_request("a", 9))
    request = make_request("b", 9, cache_salt=cache_salt, lora_id=lora_id)
    assert kv.admit(request) == num_hit_tokens


def test_a_duplicate_computed_at_the_same_time_stays_unhashed() -> None:
    kv = make_kv()
    first, second = make_request("a", 9), make_request("b", 9)
    for request in (first, second):
        assert kv.admit(request) == 0
    for request in (first, second):
        compute(kv, request, 9)
    assert [block.block_hash is not None for block in kv.pool.blocks[:6]] == [
        *(True, True, False),
        *(False, False, False),
    ]
    kv.free(second)
    assert kv.pool.free_block_ids == (3, 4, 5, 6, 7, 8, 9)


def test_without_prefix_caching_nothing_is_hashed_or_hit() -> None:
    kv = make_kv(prefix_caching=False)
    run_prompt(kv, make_request("a", 9))
    assert all(block.block_hash is None for block in kv.pool.blocks)
    assert kv.admit(make_request("b", 9)) == 0
    assert (kv.num_prefix_query_tokens, kv.num_prefix_hit_tokens) == (0, 0)


def test_prefix_numbers_count_first_admissions_only() -> None:
    kv = make_kv()
    request = make_request("a", 9)
    run_prompt(kv, request)
    kv.free(request)
    request.num_preemptions = 1
    assert kv.admit(request) == 8
    assert (kv.num_prefix_query_tokens, kv.num_prefix_hit_tokens) == (9, 0)


def test_a_running_request_grows_by_a_block_when_the_last_is_full() -> None:
    kv = make_kv(3, watermark=0.3)
    request = make_request("a", 3)
    run_prompt(kv, request)
    request.append_output_token(7)
    assert kv.allocate_slots(request, 1) == SlotAllocation(block_ids=None, copies=())
    request.num_computed_tokens += 1
    request.append_output_token(7)
    assert kv.allocate_slots(request, 1) == SlotAllocation(block_ids=(0, 1), copies=())
    request.num_computed_tokens += 1
    # Growth may use the watermark; beyond the pool it gets nothing and keeps what it has.
    assert kv.allocate_slots(request, 7) == SlotAllocation(block_ids=(0, 1, 2), copies=())
    assert kv.allocate_slots(request, 8) is None
    assert kv.block_ids(request) == (0, 1, 2)
    kv.check_integrity()


def test_a_fork_shares_the_prompt_and_its_first_write_copies_the_last_block() -> None:
    kv = make_kv()
    parent, child = make_request("a", 10), make_request("a-1", 10, parent_id="a")
    run_prompt(kv, parent)
    assert kv.fork(parent, child) == 9
    assert kv.block_ids(child) == (0, 1, 2)
    assert ref_counts(kv) == [2, 2, 2, 0, 0, 0, 0, 0, 0, 0]
    child.num_computed_tokens = 9
    assert kv.allocate_slots(child, 1) == SlotAllocation((0, 1, 3), (BlockCopy(2, 3),))
    assert ref_counts(kv) == [2, 2, 1, 1, 0, 0, 0, 0, 0, 0]
    assert kv.block_ids(parent) == (0, 1, 2)
    kv.check_integrity()


def test_a_fork_of_a_prompt_that_fills_its_blocks_copies_the_last_full_one() -> None:
    kv = make_kv()
    parent, child = make_request("a", 8), make_request("a-1", 8, parent_id="a")
    run_prompt(kv, parent)
    shared_hash = kv.pool.blocks[1].block_hash
    assert kv.fork(parent, child) == 7
    child.num_computed_tokens = 7
    compute(kv, child, 1)
    assert kv.block_ids(child) == (0, 2)
    assert kv.pool.blocks[1].block_hash == shared_hash
    assert kv.pool.blocks[2].block_hash is None


def test_a_fork_does_not_share_the_parent_s_output_blocks() -> None:
    kv = make_kv()
    parent, child = make_request("a", 4), make_request("a-1", 4, parent_id="a")
    run_prompt(kv, parent)
    parent.append_output_token(7)
    compute(kv, parent, 1)
    assert kv.block_ids(parent) == (0, 1)
    assert kv.fork(parent, child) == 3
    assert kv.block_ids(child) == (0,)


def test_whoever_writes_first_into_a_shared_block_copies_it() -> None:
    """Not only a child: the rule looks at the block, not at who holds it."""
    kv = make_kv()
    parent, child = make_request("a", 6), make_request("a-1", 6, parent_id="a")
    run_prompt(kv, parent)
    assert kv.fork(parent, child) == 5
    child.num_computed_tokens = 5
    parent.append_output_token(7)
    assert kv.allocate_slots(parent, 1) == SlotAllocation((0, 2), (BlockCopy(1, 2),))
    assert kv.allocate_slots(child, 1) == SlotAllocation()
    assert kv.block_ids(child) == (0, 1)
    kv.check_integrity()


def test_a_fork_needs_a_block_for_the_copy_above_the_watermark() -> None:
    kv = make_kv(4, watermark=0.25)
    parent = make_request("a", 8)
    run_prompt(kv, parent)
    assert kv.fork(parent, make_request("a-1", 8)) == 7
    assert kv.pool.allocate(1)[0].block_id == 2
    late = make_request("a-2", 8)
    assert kv.fork(parent, late) is None
    assert kv.block_ids(late) == ()


def test_copy_on_write_without_a_free_block_changes_nothing() -> None:
    kv = make_kv(2)
    parent, child = make_request("a", 4), make_request("a-1", 4)
    run_prompt(kv, parent)
    assert kv.fork(parent, child) == 3
    child.num_computed_tokens = 3
    kv.pool.allocate(1)
    assert kv.allocate_slots(child, 1) is None
    assert kv.block_ids(child) == (0,)
    assert ref_counts(kv) == [2, 1]


def test_a_discarded_request_s_blocks_are_hit_by_nobody() -> None:
    kv = make_kv()
    request = make_request("a", 9)
    run_prompt(kv, request)
    kv.free(request, discard=True)
    assert kv.get_computed_blocks(make_request("b", 9)) == []
    assert kv.pool.free_block_ids == (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
    kv.check_integrity()


def test_free_of_a_request_without_blocks_is_nothing() -> None:
    kv = make_kv()
    kv.free(make_request("a", 9))
    assert kv.num_free_blocks == 10


def test_hashes_are_kept_while_a_request_waits_and_forgotten_when_it_goes() -> None:
    kv = make_kv()
    request = make_request("a", 9)
    kv.get_computed_blocks(request)
    assert kv.num_holders == 0
    assert list(kv._tables) == ["a"]
    kv.free(request)
    assert kv._tables == {}


def test_integrity_finds_a_ref_that_no_table_holds() -> None:
    kv = make_kv(4)
    kv.admit(make_request("a", 5))
    kv.pool.touch([kv.pool.blocks[1]])
    with pytest.raises(RuntimeError, match=r"Block\(1, ref_count 2\) is in 1 tables"):
        kv.check_integrity()
    kv.pool.free([kv.pool.blocks[1]])
    kv.pool.allocate(1)
    with pytest.raises(RuntimeError, match=r"Block\(2, ref_count 1\) is in 0 tables"):
        kv.check_integrity()


def test_integrity_finds_a_block_twice_in_one_table() -> None:
    kv = make_kv(4)
    request = make_request("a", 5)
    kv.admit(request)
    kv.pool.touch([kv.pool.blocks[0]])
    kv._tables["a"].extend([kv.pool.blocks[0]])
    with pytest.raises(RuntimeError, match=r"request a holds a block twice: \(0, 1, 0\)"):
        kv.check_integrity()
