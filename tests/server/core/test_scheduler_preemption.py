"""Out of blocks: who steps aside, what it costs, and how it comes back."""

from __future__ import annotations

from refectory_server.core.request import FinishReason, RequestStatus
from refectory_server.core.scheduler_output import Preemption
from refectory_server.testing.requests import make_request
from refectory_server.testing.schedulers import SmallScheduler, make_scheduler

A_PROMPT, B_PROMPT = [1] * 8, [2] * 7


def two_in_a_full_pool(*, enable_prefix_caching: bool = True) -> SmallScheduler:
    """`a` holds blocks 0, 1 and `b` blocks 2, 3 of 4, all slots but one of `b`'s used."""
    small = make_scheduler(num_blocks=4, enable_prefix_caching=enable_prefix_caching)
    small.scheduler.add_request(make_request("a", A_PROMPT, max_tokens=5))
    small.scheduler.add_request(make_request("b", B_PROMPT, max_tokens=5))
    small.step({"a": 70, "b": 80})
    assert small.kv.num_free_blocks == 0
    return small


def test_the_last_arrived_steps_aside_for_the_first() -> None:
    small = two_in_a_full_pool()
    output, updates = small.step({"a": 71})
    assert output.num_scheduled_tokens == {"a": 1}
    assert output.preemptions == (Preemption("b", 7),)
    assert output.dropped_request_ids == ("b",)
    # b's partly filled block is the first taken: its full one is worth more.
    assert output.cached_requests[0].block_ids == (0, 1, 3)
    assert [update.request_id for update in updates] == ["a"]
    stats = small.scheduler.stats()
    assert (stats.num_preemptions, stats.num_preempted_tokens) == (1, 7)
    assert (stats.num_running, stats.num_waiting) == (1, 1)


def test_a_preempted_request_comes_back_whole_and_finds_its_blocks_in_the_cache() -> None:
    small = two_in_a_full_pool()
    small.step({"a": 71})
    for token_id in (72, 73):
        assert small.step({"a": token_id})[0].num_scheduled_tokens == {"a": 1}
    _, updates = small.step({"a": 74})
    assert updates[0].finish_reason is FinishReason.LENGTH
    output, updates = small.step({"b": 81})
    (new,) = output.new_requests
    assert new.token_ids == (*B_PROMPT, 80)
    assert (new.num_prompt_tokens, new.num_computed_tokens) == (7, 4)
    assert new.block_ids[0] == 2
    assert output.num_scheduled_tokens == {"b": 4}
    (update,) = updates
    assert (update.new_token_ids, update.num_preemptions) == ((81,), 1)
    # What it found of its own is no prefix hit of a client's.
    assert update.num_cached_tokens == 0
    stats = small.scheduler.stats()
    assert (stats.num_prefix_query_tokens, stats.num_prefix_hit_tokens) == (15, 0)


def test_without_a_prefix_cache_all_is_computed_again() -> None:
    small = two_in_a_full_pool(enable_prefix_caching=False)
    small.step({"a": 71})
    small.scheduler.abort(["a"])
    output, _ = small.step({"b": 81})
    assert output.num_scheduled_tokens == {"b": 8}


def test_the_last_one_steps_aside_itself_when_it_is_the_one_in_need() -> None:
    small = make_scheduler(num_blocks=4)
    small.scheduler.add_request(make_request("a", [1] * 5))
    small.scheduler.add_request(make_request("b", [2] * 8))
    small.step({"a": 70, "b": 80})
    output, updates = small.step({"a": 71})
    assert output.num_scheduled_tokens == {"a": 1}
    assert output.preemptions == (Preemption("b", 8),)
    assert [update.request_id for update in updates] == ["a"]


def test_each_in_need_takes_the_last_one_left() -> None:
    """Four prompts fill a block each, and every first output needs another."""
    small = make_scheduler(num_blocks=4)
    for token_id, name in enumerate("abcd"):
        small.scheduler.add_request(make_request(name, [token_id] * 4))
    small.step({"a": 70, "b": 70, "c": 70, "d": 70})
    output, _ = small.step({"a": 71, "b": 71})
    assert output.num_scheduled_tokens == {"a": 1, "b": 1}
    assert output.preemptions == (Preemption("d", 4), Preemption("c", 4))
    assert output.dropped_request_ids == ("d", "c")
    assert [data.block_ids for data in output.cached_requests] == [(0, 3), (1, 2)]
    assert [request.request_id for request in small.scheduler._waiting] == ["c", "d"]


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    small = two_in_a_full_pool()
    small.scheduler.add_request(make_request("c", [3]))
    output, _ = small.step({"a": 71})
    assert output.preemptions == (Preemption("b", 7),)
    assert output.new_requests == ()


def test_a_preempted_request_is_ahead_of_those_that_arrived_after_it() -> None:
    small = two_in_a_full_pool()
    small.step({"a": 71})
    small.scheduler.add_request(make_request("c", [3]))
    small.scheduler.abort(["a"])
    output, _ = small.step({"b": 81, "c": 90})
    assert list(output.num_scheduled_tokens) == ["b", "c"]


def test_priority_preempts_the_highest_value_not_the_last_arrived() -> None:
    small = make_scheduler(num_blocks=4, scheduling_policy="priority")
    small.scheduler.add_request(make_request("a", A_PROMPT, priority=1))
    small.scheduler.add_request(make_request("b", B_PROMPT, priority=0))
    small.step({"a": 70, "b": 80})
    small.step({"b": 81})
    output, _ = small.step({"b": 82})
    assert output.num_scheduled_tokens == {"b": 1}
    assert small.scheduler.stats().num_preemptions == 1


def test_a_deadline_does_not_end_a_preempted_request() -> None:
    small = make_scheduler(num_blocks=4)
    small.scheduler.add_request(make_request("a", A_PROMPT))
    preempted = make_request("b", B_PROMPT, deadline=1.0)
    small.scheduler.add_request(preempted)
    small.step({"a": 70, "b": 80})
    small.step({"a": 71})
    assert preempted.status is RequestStatus.PREEMPTED
    small.scheduler.schedule(99.0)
    assert preempted.status is RequestStatus.PREEMPTED
    assert small.scheduler.take_updates() == []


def test_an_aborted_preempted_request_is_dropped_once() -> None:
    small = two_in_a_full_pool()
    assert small.step({"a": 71})[0].dropped_request_ids == ("b",)
    (update,) = small.scheduler.abort(["b"])
    assert (update.finish_reason, update.num_preemptions) == (FinishReason.ABORT, 1)
    assert small.step({"a": 72})[0].dropped_request_ids == ()


def test_a_request_alone_grows_to_the_whole_pool() -> None:
    small = make_scheduler(num_blocks=3)
    small.scheduler.add_request(make_request("a", 5))
    for _ in range(6):
        _, updates = small.step({"a": 70})
        assert updates[0].finish_reason is None
    _, updates = small.step({"a": 70})
    assert updates[0].finish_reason is FinishReason.LENGTH
    assert small.scheduler.stats().num_preemptions == 0
