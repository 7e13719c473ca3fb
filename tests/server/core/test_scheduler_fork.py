"""n > 1: children share their parent's prompt, whatever happens to it."""

from __future__ import annotations

import pytest

from refectory_server.core.request import Request, RequestStatus
from refectory_server.core.scheduler_output import BlockCopy
from refectory_server.testing.requests import make_request
from refectory_server.testing.schedulers import make_scheduler


def test_children_start_when_the_parent_s_prompt_is_computed_and_copy_its_last_block() -> None:
    small = make_scheduler()
    small.scheduler.add_request(make_request("p", 6))
    small.scheduler.add_request(make_request("p-1", 6, parent_id="p"))
    small.scheduler.add_request(make_request("p-2", 6, parent_id="p"))
    output, _ = small.step({"p": 70})
    assert output.num_scheduled_tokens == {"p": 6}

    output, updates = small.step({"p": 71, "p-1": 80, "p-2": 90})
    assert output.num_scheduled_tokens == {"p": 1, "p-1": 1, "p-2": 1}
    assert [(new.block_ids, new.num_computed_tokens) for new in output.new_requests] == [
        ((0, 2), 5),
        ((0, 3), 5),
    ]
    assert output.block_copies == (BlockCopy(1, 2), BlockCopy(1, 3))
    assert output.cached_requests[0].block_ids is None
    assert small.kv.pool.blocks[0].ref_count == 3
    # Sharing within a request is no prefix hit, and asks the cache nothing.
    assert [update.num_cached_tokens for update in updates] == [0, 0, 0]
    assert small.scheduler.stats().num_prefix_query_tokens == 6


def test_a_child_waits_through_the_parent_s_chunks_and_holds_up_the_queue() -> None:
    small = make_scheduler(max_num_batched_tokens=16, long_prefill_token_threshold=4)
    small.scheduler.add_request(make_request("p", 10))
    small.scheduler.add_request(make_request("p-1", 10, parent_id="p"))
    small.scheduler.add_request(make_request("other", [9]))
    steps = [small.step(sampled)[0] for sampled in ({}, {}, {"p": 70})]
    assert [output.num_scheduled_tokens for output in steps] == [{"p": 4}, {"p": 4}, {"p": 2}]
    output, _ = small.step({"p": 71, "p-1": 80, "other": 90})
    assert output.num_scheduled_tokens == {"p": 1, "p-1": 1, "other": 1}


def test_a_child_of_a_finished_parent_is_a_plain_request() -> None:
    small = make_scheduler()
    small.scheduler.add_request(make_request("p", 6, max_tokens=1))
    small.scheduler.add_request(make_request("p-1", 6, parent_id="p"))
    small.step({"p": 70})
    output, updates = small.step({"p-1": 80})
    assert output.num_scheduled_tokens == {"p-1": 2}
    assert output.block_copies == ()
    assert updates[0].num_cached_tokens == 4


def test_a_child_whose_parent_never_was_is_a_plain_request() -> None:
    small = make_scheduler()
    small.scheduler.add_request(make_request("p-1", 6, parent_id="p"))
    assert small.step({"p-1": 80})[0].num_scheduled_tokens == {"p-1": 6}


def test_a_child_does_not_take_another_request_for_its_parent() -> None:
    small = make_scheduler(max_num_seqs=1)
    small.scheduler.add_request(make_request("p", 6))
    small.scheduler.add_request(make_request("p-1", 6, parent_id="p"))
    small.scheduler.abort(["p"])
    small.scheduler.add_request(make_request("p", [9] * 6))
    output, _ = small.step({"p-1": 80})
    assert output.num_scheduled_tokens == {"p-1": 6}
    assert output.new_requests[0].token_ids == (0, 1, 2, 3, 4, 5)


def test_a_preempted_parent_and_its_waiting_child_come_back_in_order() -> None:
    small = make_scheduler(num_blocks=4)
    small.scheduler.add_request(make_request("a", [1] * 8, max_tokens=2))
    parent = make_request("p", [2] * 8)
    small.scheduler.add_request(parent)
    small.scheduler.add_request(make_request("p-1", [2] * 8, parent_id="p"))
    small.step({"a": 70, "p": 80})
    output, _ = small.step({"a": 71})
    assert [preemption.request_id for preemption in output.preemptions] == ["p"]
    assert parent.status is RequestStatus.PREEMPTED
    output, _ = small.step({"p": 81})
    assert output.num_scheduled_tokens == {"p": 5}
    output, _ = small.step({"p": 82, "p-1": 90})
    assert output.num_scheduled_tokens == {"p": 1, "p-1": 1}
    assert len(output.block_copies) == 1


def test_a_preempted_child_comes_back_as_a_plain_request() -> None:
    small = make_scheduler(num_blocks=4)
    small.scheduler.add_request(make_request("p", [2] * 8))
    child = make_request("p-1", [2] * 8, parent_id="p")
    small.scheduler.add_request(child)
    small.step({"p": 80})
    small.step({"p": 81, "p-1": 90})
    small.step({"p": 82})
    assert child.status is RequestStatus.PREEMPTED
    small.scheduler.abort(["p"])
    output, _ = small.step({"p-1": 91})
    (new,) = output.new_requests
    assert new.token_ids == (*[2] * 8, 90)
    assert (new.num_computed_tokens, output.block_copies) == (8, ())


@pytest.mark.parametrize(
    "child",
    [
        make_request("p-1", [0, 1, 2, 4], parent_id="p"),
        make_request("p-1", 3, parent_id="p"),
        make_request("p-1", 4, parent_id="p", cache_salt="s"),
        make_request("p-1", 4, parent_id="p", lora_id=1),
        make_request("p-1", 4, parent_id="p", priority=-1),
    ],
)
def test_a_child_that_differs_from_its_parent_is_refused(child: Request) -> None:
    small = make_scheduler()
    small.scheduler.add_request(make_request("p", 4))
    with pytest.raises(
        ValueError, match="p-1 differs from its parent p in prompt, cache_salt, lora_id or priority"
    ):
        small.scheduler.add_request(child)
    assert small.scheduler.stats().num_waiting == 1
