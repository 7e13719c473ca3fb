"""Which requests are queued at all, and how many tokens they may have."""

from __future__ import annotations

import pytest

from refectory_server.core.scheduler_output import ModelRunnerOutput
from refectory_server.errors import PromptTooLong, QueueFull
from refectory_server.testing.requests import make_request
from refectory_server.testing.schedulers import make_scheduler


def test_an_id_is_in_use_until_its_request_ends() -> None:
    small = make_scheduler()
    small.scheduler.add_request(make_request("a"))
    with pytest.raises(ValueError, match="request id a is in use"):
        small.scheduler.add_request(make_request("a"))
    small.scheduler.abort(["a"])
    small.scheduler.add_request(make_request("a"))


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "max_output_tokens"),
    [
        (10, 4, 4),
        (10, None, 26),
        (10, 1000, 26),
        (35, None, 1),
        (35, 7, 1),
    ],
)
def test_output_is_capped_by_the_pool_less_the_watermark(
    num_prompt_tokens: int, max_tokens: int | None, max_output_tokens: int
) -> None:
    small = make_scheduler(num_blocks=10, watermark=0.05)
    request = make_request("a", num_prompt_tokens, max_tokens=max_tokens)
    small.scheduler.add_request(request)
    assert request.max_output_tokens == max_output_tokens


def test_output_is_capped_by_the_context() -> None:
    small = make_scheduler(num_blocks=10, max_model_len=20)
    request = make_request("a", 15)
    small.scheduler.add_request(request)
    assert request.max_output_tokens == 5


def test_a_prompt_that_leaves_no_token_in_the_pool_is_refused() -> None:
    small = make_scheduler(num_blocks=10, watermark=0.05)
    with pytest.raises(PromptTooLong) as refusal:
        small.scheduler.add_request(make_request("a", 36))
    assert str(refusal.value) == (
        "the prompt has 36 tokens, at most 35 are allowed: with 1 output token it has to fit "
        "max_model_len 1024 and the KV cache's 36 tokens for one request"
    )
    assert not small.scheduler.has_work


def test_a_prompt_that_leaves_no_token_in_the_context_is_refused() -> None:
    small = make_scheduler(num_blocks=10, max_model_len=20)
    small.scheduler.add_request(make_request("a", 19))
    with pytest.raises(PromptTooLong, match="the prompt has 20 tokens, at most 19 are allowed"):
        small.scheduler.add_request(make_request("b", 20))


def test_the_queue_is_full_by_number() -> None:
    small = make_scheduler(max_num_seqs=2, max_num_queued_reqs=5)
    for index in range(2 + 5):
        small.scheduler.add_request(make_request(f"r{index}"))
    with pytest.raises(QueueFull, match="5 requests wait, max_num_queued_reqs is 5") as refusal:
        small.scheduler.add_request(make_request("late"))
    assert (refusal.value.reason, refusal.value.retry_after_s) == ("max_num_queued_reqs", 3)
    small.step({"r0": 70, "r1": 70})
    with pytest.raises(QueueFull, match="5 requests wait"):
        small.scheduler.add_request(make_request("late"))
    small.scheduler.abort(["r2"])
    small.scheduler.add_request(make_request("late"))


def test_a_burst_that_finds_seats_is_not_refused() -> None:
    small = make_scheduler(max_num_seqs=8, max_num_queued_reqs=1, max_num_queued_tokens=1)
    for index in range(8):
        small.scheduler.add_request(make_request(f"r{index}"))
    output, _ = small.step({f"r{index}": 70 for index in range(8)})
    assert len(output.new_requests) == 8


def test_a_free_seat_without_blocks_is_none() -> None:
    small = make_scheduler(num_blocks=4, max_num_seqs=8, max_num_queued_reqs=2)
    for request_id in ("runs", "waits"):
        small.scheduler.add_request(make_request(request_id, 10))
    small.step({"runs": 70})
    small.scheduler.add_request(make_request("also", 10))
    with pytest.raises(QueueFull, match="2 requests wait"):
        small.scheduler.add_request(make_request("late", 10))


def test_by_default_four_rounds_of_seats_may_wait() -> None:
    small = make_scheduler(max_num_seqs=1)
    for index in range(1 + 4):
        small.scheduler.add_request(make_request(f"r{index}"))
    with pytest.raises(QueueFull, match="max_num_queued_reqs is 4"):
        small.scheduler.add_request(make_request("late"))


def test_the_queue_is_full_by_tokens() -> None:
    small = make_scheduler(max_num_seqs=1, max_num_queued_tokens=10)
    small.scheduler.add_request(make_request("runs"))
    small.step({"runs": 70})
    small.scheduler.add_request(make_request("a", 4))
    small.scheduler.add_request(make_request("b", 6))
    with pytest.raises(QueueFull) as refusal:
        small.scheduler.add_request(make_request("c", 1))
    assert str(refusal.value) == (
        "10 tokens wait, the prompt's 1 more would exceed max_num_queued_tokens 10"
    )
    assert (refusal.value.reason, refusal.value.retry_after_s) == ("max_num_queued_tokens", 2)


def test_waiting_choices_count_their_prompt_once() -> None:
    small = make_scheduler(max_num_seqs=1, max_num_queued_reqs=9, max_num_queued_tokens=10)
    small.scheduler.add_request(make_request("runs"))
    small.step({"runs": 70})
    small.scheduler.add_request(make_request("a", 4))
    for index in (1, 2):
        small.scheduler.add_request(make_request(f"a-{index}", 4, parent_id="a"))
    small.scheduler.add_request(make_request("b", 6))
    with pytest.raises(QueueFull, match="10 tokens wait, the prompt's 1 more would exceed"):
        small.scheduler.add_request(make_request("c", 1))


def test_a_long_prompt_may_wait_alone() -> None:
    """Otherwise it could never be served, however often the client came back."""
    small = make_scheduler(max_num_seqs=1, max_num_queued_tokens=10, enable_prefix_caching=False)
    small.scheduler.add_request(make_request("runs", max_tokens=2))
    small.step({"runs": 70})
    small.scheduler.add_request(make_request("a", 40))
    small.step({"runs": 70})
    assert small.step({"a": 70})[0].num_scheduled_tokens == {"a": 40}


def test_memory_follows_the_unfinished_requests_not_the_history() -> None:
    small = make_scheduler(num_blocks=8, max_num_seqs=2)
    scheduler = small.scheduler
    scheduler.add_request(make_request("stays", 2, ignore_eos=True))
    for index in range(500):
        served, child, aborted = f"s{index}", f"s{index}-1", f"a{index}"
        prompt = [index + 1] * 4
        scheduler.add_request(make_request(served, prompt, max_tokens=1, deadline=1e9))
        scheduler.add_request(make_request(child, prompt, max_tokens=1, parent_id=served))
        scheduler.add_request(make_request(aborted, prompt, deadline=1e9))
        output = scheduler.schedule(0.0)
        scheduler.abort(["stays", child, aborted])
        scheduler.update_from_output(output, ModelRunnerOutput({served: 70}))
        scheduler.add_request(make_request("stays", 2))
    assert list(scheduler._requests) == ["stays"]
    assert scheduler._parents == {}
    assert list(small.kv._tables) == []
    assert len(scheduler._dropped_request_ids) <= 2
    assert len(small.kv.pool._cached) <= 8
    scheduler.check_integrity()
