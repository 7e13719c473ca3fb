"""One step at a time: what is scheduled, in which order, with which blocks; how requests end."""

from __future__ import annotations

import pytest

from refectory_server.core.request import FinishReason, RequestStatus
from refectory_server.core.request_update import RequestUpdate
from refectory_server.core.scheduler_output import (
    CachedRequestData,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from refectory_server.core.stats import SchedulerStats
from refectory_server.testing.requests import make_request
from refectory_server.testing.schedulers import make_scheduler


def test_nothing_to_do_is_an_empty_step() -> None:
    small = make_scheduler()
    assert small.step() == (SchedulerOutput(), [])
    assert not small.scheduler.has_work


def test_a_prompt_is_computed_and_decoded_to_its_end() -> None:
    small = make_scheduler()
    request = make_request("a", 6, max_tokens=3, seed=5)
    small.scheduler.add_request(request)

    output = small.scheduler.schedule(2.5)
    assert output == SchedulerOutput(
        new_requests=(
            NewRequestData(
                request_id="a",
                token_ids=(0, 1, 2, 3, 4, 5),
                num_prompt_tokens=6,
                sampling_params=request.sampling_params,
                seed=5,
                block_ids=(0, 1),
                num_computed_tokens=0,
            ),
        ),
        num_scheduled_tokens={"a": 6},
    )
    updates = small.scheduler.update_from_output(output, ModelRunnerOutput({"a": 70}))
    assert updates == [RequestUpdate("a", (70,), None, None, 0, 2.5, 0)]

    output, updates = small.step({"a": 71})
    assert output == SchedulerOutput(
        cached_requests=(CachedRequestData("a", None, 6),), num_scheduled_tokens={"a": 1}
    )
    assert updates == [RequestUpdate("a", (71,), None, None, 0, 2.5, 0)]

    _, updates = small.step({"a": 72})
    assert updates == [RequestUpdate("a", (72,), FinishReason.LENGTH, None, 0, 2.5, 0)]
    assert request.status is RequestStatus.FINISHED
    assert list(request.token_ids) == [0, 1, 2, 3, 4, 5, 70, 71, 72]
    assert small.kv.num_free_blocks == 16
    assert not small.scheduler.has_work


def test_block_ids_are_sent_again_only_when_the_table_grew() -> None:
    small = make_scheduler()
    small.scheduler.add_request(make_request("a", 3, max_tokens=9))
    sent = [small.step({"a": 70})[0].cached_requests for _ in range(7)]
    assert [[data.block_ids for data in cached] for cached in sent] == [
        *([], [None], [(0, 1)], [None]),
        *([None], [None], [(0, 1, 2)]),
    ]


def test_a_finished_id_is_dropped_in_the_next_step_that_computes() -> None:
    small = make_scheduler()
    small.scheduler.add_request(make_request("a", 3, max_tokens=1))
    small.step({"a": 70})
    assert small.step() == (SchedulerOutput(), [])
    small.scheduler.add_request(make_request("b", 3))
    assert small.step({"b": 70})[0].dropped_request_ids == ("a",)
    assert small.step({"b": 70})[0].dropped_request_ids == ()


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    small = make_scheduler(max_num_batched_tokens=10, max_num_seqs=2)
    small.scheduler.add_request(make_request("a", 25))
    small.scheduler.add_request(make_request("b", [9] * 7))
    sampled: list[dict[str, int]] = [{}, {}, {"a": 70}, {"a": 70, "b": 80}]
    outputs = [small.step(tokens)[0] for tokens in sampled]
    assert [output.num_scheduled_tokens for output in outputs] == [
        {"a": 10},
        {"a": 10},
        {"a": 5, "b": 5},
        {"a": 1, "b": 2},
    ]
    assert [data.num_computed_tokens for data in outputs[1].cached_requests] == [10]
    assert outputs[2].new_requests[0].block_ids == (7, 8)


def test_running_requests_leave_a_token_for_each_behind_them() -> None:
    """A long prompt that came back or has priority does not stop those who decode."""
    small = make_scheduler(
        max_num_batched_tokens=4, max_num_seqs=3, scheduling_policy="priority", num_blocks=32
    )
    for name in ("a", "b"):
        small.scheduler.add_request(make_request(name, 1, priority=1))
    small.scheduler.add_request(make_request("urgent", [9] * 12, priority=0))
    small.step()
    assert small.step()[0].num_scheduled_tokens == {"urgent": 4}
    assert small.step({"urgent": 70})[0].num_scheduled_tokens == {"urgent": 4}
    # Both seats are taken while `urgent` decodes; then a still more urgent prompt arrives.
    assert small.step({"urgent": 70, "a": 70, "b": 70})[0].num_scheduled_tokens == {
        "urgent": 1,
        "a": 1,
        "b": 1,
    }
    small.scheduler.abort(["urgent"])
    small.scheduler.add_request(make_request("first", [8] * 9, priority=-1))
    outputs = [small.step({"a": 70, "b": 70})[0] for _ in range(4)]
    assert [output.num_scheduled_tokens for output in outputs] == [
        {"a": 1, "b": 1, "first": 2},
        {"first": 2, "a": 1, "b": 1},
        {"first": 2, "a": 1, "b": 1},
        {"first": 2, "a": 1, "b": 1},
    ]


def test_the_long_prefill_threshold_caps_a_prompt_s_share() -> None:
    small = make_scheduler(max_num_batched_tokens=16, long_prefill_token_threshold=5)
    small.scheduler.add_request(make_request("a", 12))
    small.scheduler.add_request(make_request("b", [9] * 4))
    outputs = [small.step(sampled)[0] for sampled in ({"b": 70}, {"b": 70}, {"a": 70, "b": 70})]
    assert [output.num_scheduled_tokens for output in outputs] == [
        {"a": 5, "b": 4},
        {"a": 5, "b": 1},
        {"a": 2, "b": 1},
    ]


def test_seats_are_limited_by_max_num_seqs() -> None:
    small = make_scheduler(max_num_seqs=2)
    for name in ("a", "b", "c"):
        small.scheduler.add_request(make_request(name, 2, max_tokens=2))
    assert small.step({"a": 70, "b": 70})[0].num_scheduled_tokens == {"a": 2, "b": 2}
    assert small.step({"a": 70, "b": 70})[0].num_scheduled_tokens == {"a": 1, "b": 1}
    assert small.step({"c": 70})[0].num_scheduled_tokens == {"c": 2}


def test_the_head_of_the_queue_is_not_overtaken() -> None:
    small = make_scheduler(num_blocks=4)
    small.scheduler.add_request(make_request("a", 9, max_tokens=2))
    small.step({"a": 70})
    small.scheduler.add_request(make_request("large", [9] * 6))
    small.scheduler.add_request(make_request("small", [8]))
    assert small.step({"a": 70})[0].num_scheduled_tokens == {"a": 1}
    assert small.step({"large": 70, "small": 70})[0].num_scheduled_tokens == {
        "large": 6,
        "small": 1,
    }


def test_priority_admits_lower_values_first() -> None:
    small = make_scheduler(scheduling_policy="priority", max_num_seqs=2)
    for name, priority in (("a", 3), ("b", -1), ("c", 3), ("d", 0)):
        small.scheduler.add_request(make_request(name, 2, priority=priority, max_tokens=1))
    assert list(small.step({"b": 70, "d": 70})[0].num_scheduled_tokens) == ["b", "d"]
    assert list(small.step({"a": 70, "c": 70})[0].num_scheduled_tokens) == ["a", "c"]


def test_a_prefix_hit_is_computed_from_there_on() -> None:
    small = make_scheduler()
    small.scheduler.add_request(make_request("a", 11, max_tokens=1))
    small.step({"a": 70})
    small.scheduler.add_request(make_request("b", 10))
    output, updates = small.step({"b": 70})
    assert output.num_scheduled_tokens == {"b": 2}
    (new,) = output.new_requests
    assert (new.block_ids, new.num_computed_tokens) == ((0, 1, 2), 8)
    assert updates == [RequestUpdate("b", (70,), None, None, 8, 0.0, 0)]
    stats = small.scheduler.stats()
    assert (stats.num_prefix_query_tokens, stats.num_prefix_hit_tokens) == (21, 8)


def test_blocks_are_shared_only_after_the_step_that_computed_them() -> None:
    small = make_scheduler()
    for name in ("a", "b"):
        small.scheduler.add_request(make_request(name, 9))
    output, _ = small.step({"a": 70, "b": 70})
    assert output.num_scheduled_tokens == {"a": 9, "b": 9}
    assert [new.block_ids for new in output.new_requests] == [(0, 1, 2), (3, 4, 5)]


@pytest.mark.parametrize(
    ("token_id", "ignore_eos", "stop_token_ids", "max_tokens", "reason"),
    [
        (2, False, (), 5, FinishReason.STOP),
        (3, False, (), 5, FinishReason.STOP),
        (2, True, (), 5, None),
        (7, False, (7, 8), 5, FinishReason.STOP),
        (2, True, (2,), 5, FinishReason.STOP),
        (9, False, (7, 8), 5, None),
        (9, False, (), 1, FinishReason.LENGTH),
        (2, False, (), 1, FinishReason.STOP),
        (2, True, (), 1, FinishReason.LENGTH),
    ],
)
def test_why_a_token_is_the_last(
    token_id: int,
    ignore_eos: bool,
    stop_token_ids: tuple[int, ...],
    max_tokens: int,
    reason: FinishReason | None,
) -> None:
    small = make_scheduler(eos_token_ids=(2, 3))
    request = make_request(
        "a", 4, max_tokens=max_tokens, ignore_eos=ignore_eos, stop_token_ids=stop_token_ids
    )
    small.scheduler.add_request(request)
    _, updates = small.step({"a": token_id})
    assert updates == [RequestUpdate("a", (token_id,), reason, None, 0, 0.0, 0)]
    assert request.finish_reason is reason
    assert small.scheduler.has_work == (reason is None)


def test_a_failed_request_ends_alone_and_its_blocks_are_shared_with_nobody() -> None:
    small = make_scheduler(max_num_batched_tokens=16)
    small.scheduler.add_request(make_request("a", 20))
    small.scheduler.add_request(make_request("b", [9] * 5))
    small.step()
    # Its first chunk is in the cache; the second fails.
    assert len(small.kv.get_computed_blocks(make_request("other", 20))) == 4
    _, updates = small.step({"b": 70}, {"a": "the logits are not finite"})
    assert updates == [
        RequestUpdate("a", (), FinishReason.ERROR, "the logits are not finite", 0, 0.0, 0),
        RequestUpdate("b", (70,), None, None, 0, 0.0, 0),
    ]
    assert small.kv.get_computed_blocks(make_request("another", 20)) == []
    output, _ = small.step({"b": 70})
    assert output.dropped_request_ids == ("a",)
    assert output.num_scheduled_tokens == {"b": 1}


def test_abort_of_a_running_and_of_a_waiting_request() -> None:
    small = make_scheduler(max_num_seqs=1)
    small.scheduler.add_request(make_request("running", 5))
    small.scheduler.add_request(make_request("waiting", [9] * 5))
    small.step({"running": 70})
    updates = small.scheduler.abort(["waiting", "running", "unknown", "waiting"])
    assert updates == [
        RequestUpdate("waiting", (), FinishReason.ABORT, None, 0, None, 0),
        RequestUpdate("running", (), FinishReason.ABORT, None, 0, 0.0, 0),
    ]
    small.scheduler.check_integrity()
    assert small.kv.num_free_blocks == 16
    assert not small.scheduler.has_work
    small.scheduler.add_request(make_request("next", 1))
    # The runner never heard of the one that waited.
    assert small.step({"next": 70})[0].dropped_request_ids == ("running",)


def test_abort_for_another_reason() -> None:
    small = make_scheduler()
    small.scheduler.add_request(make_request("a", 5))
    (update,) = small.scheduler.abort(["a"], FinishReason.STOP)
    assert update.finish_reason is FinishReason.STOP


def test_results_of_a_request_aborted_meanwhile_are_dropped() -> None:
    small = make_scheduler()
    for name in ("a", "b"):
        small.scheduler.add_request(make_request(name, 5))
    output = small.scheduler.schedule(0.0)
    small.scheduler.abort(["a"])
    reborn = make_request("a", [9] * 3)
    small.scheduler.add_request(reborn)
    updates = small.scheduler.update_from_output(output, ModelRunnerOutput({"a": 70, "b": 71}))
    assert updates == [RequestUpdate("b", (71,), None, None, 0, 0.0, 0)]
    assert (reborn.status, reborn.num_tokens) == (RequestStatus.WAITING, 3)
    output, _ = small.step({"a": 72, "b": 73})
    assert output.dropped_request_ids == ("a",)
    assert [new.token_ids for new in output.new_requests] == [(9, 9, 9)]


def test_a_request_that_waited_past_its_deadline_ends_unless_it_has_begun() -> None:
    small = make_scheduler(max_num_seqs=1)
    scheduler = small.scheduler
    scheduler.add_request(make_request("begun", 3, arrival_time=10.0, deadline=11.0))
    scheduler.add_request(make_request("late", 3, arrival_time=10.0, deadline=12.0))
    scheduler.add_request(make_request("patient", 3, arrival_time=10.0, deadline=99.0))
    output = scheduler.schedule(10.5)
    scheduler.update_from_output(output, ModelRunnerOutput({"begun": 70}))
    output = scheduler.schedule(12.0)
    assert output.num_scheduled_tokens == {"begun": 1}
    updates = scheduler.update_from_output(output, ModelRunnerOutput({"begun": 70}))
    message = "the request waited 2.000 s for its first step, longer than it may"
    assert updates == [
        RequestUpdate("late", (), FinishReason.DEADLINE, message, 0, None, 0),
        RequestUpdate("begun", (70,), None, None, 0, 10.5, 0),
    ]
    assert scheduler.stats().num_waiting == 1


def test_news_of_a_step_without_work_are_taken() -> None:
    scheduler = make_scheduler().scheduler
    scheduler.add_request(make_request("late", 3, deadline=1.0))
    assert scheduler.schedule(1.0) == SchedulerOutput()
    assert (scheduler.has_work, scheduler.stats().num_waiting) == (True, 0)
    (update,) = scheduler.take_updates()
    assert (update.request_id, update.finish_reason) == ("late", FinishReason.DEADLINE)
    assert not scheduler.has_work
    assert scheduler.take_updates() == []


@pytest.mark.parametrize(
    ("sampled", "message"),
    [
        ({}, "the runner sampled None for request a, which has 8 of 8 tokens computed"),
        ({"a": 1, "b": 1}, "the runner sampled 1 for request b, which has 2 of 9 tokens computed"),
    ],
)
def test_a_runner_that_samples_for_the_wrong_requests_is_found_out(
    sampled: dict[str, int], message: str
) -> None:
    small = make_scheduler(max_num_batched_tokens=10)
    small.scheduler.add_request(make_request("a", 8))
    small.scheduler.add_request(make_request("b", 9))
    with pytest.raises(RuntimeError, match=message):
        small.step(sampled)


def test_stats_of_a_step() -> None:
    small = make_scheduler(max_num_seqs=1)
    small.scheduler.add_request(make_request("a", 9))
    small.scheduler.add_request(make_request("b", [9] * 5))
    small.step({"a": 70})
    stats = small.scheduler.stats()
    assert stats == SchedulerStats(
        num_running=1,
        num_waiting=1,
        num_blocks=16,
        num_free_blocks=13,
        num_scheduled_tokens=9,
        token_budget=64,
        num_prefix_query_tokens=9,
    )
    assert stats.kv_cache_usage == 3 / 16
