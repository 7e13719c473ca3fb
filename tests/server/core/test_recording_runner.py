"""The runner that the properties rely on finds each kind of wrong block."""

from __future__ import annotations

import pytest

from refectory_server.core.scheduler_output import (
    BlockCopy,
    CachedRequestData,
    NewRequestData,
    SchedulerOutput,
)
from refectory_server.sampling_params import SamplingParams
from refectory_server.testing.recording_runner import RecordingRunner, expected_output


def new_request(
    request_id: str,
    token_ids: tuple[int, ...],
    block_ids: tuple[int, ...],
    num_computed_tokens: int = 0,
) -> NewRequestData:
    return NewRequestData(
        request_id, token_ids, len(token_ids), SamplingParams(), 0, block_ids, num_computed_tokens
    )


def step(*new: NewRequestData, copies: tuple[BlockCopy, ...] = ()) -> SchedulerOutput:
    counts = {n.request_id: len(n.token_ids) - n.num_computed_tokens for n in new}
    return SchedulerOutput(new, num_scheduled_tokens=counts, block_copies=copies)


def test_it_samples_what_the_request_would_sample_alone() -> None:
    runner = RecordingRunner(4, 2)
    runner.execute_model(step(new_request("other", (9, 9), (1,))))
    output = runner.execute_model(step(new_request("a", (1, 2, 3), (3, 0))))
    sampled = [output.sampled_token_ids["a"]]
    for num_computed_tokens in (3, 4):
        block_ids = (3, 0, 2) if num_computed_tokens == 4 else None
        cached = CachedRequestData("a", block_ids, num_computed_tokens)
        output = runner.execute_model(
            SchedulerOutput(cached_requests=(cached,), num_scheduled_tokens={"a": 1})
        )
        sampled.append(output.sampled_token_ids["a"])
    assert sampled == expected_output((1, 2, 3), 0, 3, 50)


def test_no_token_is_sampled_before_the_last_known_one_is_computed() -> None:
    runner = RecordingRunner(4, 2)
    new = new_request("a", (1, 2, 3), (0, 1))
    output = SchedulerOutput((new,), num_scheduled_tokens={"a": 2})
    assert runner.execute_model(output).sampled_token_ids == {}


def test_it_finds_a_block_of_equal_tokens_after_other_tokens() -> None:
    runner = RecordingRunner(4, 2)
    runner.execute_model(step(new_request("a", (1, 1, 5, 5), (0, 1))))
    runner.execute_model(step(new_request("c", (2, 2), (2,))))
    with pytest.raises(RuntimeError, match="b position 2, slot 2: holds"):
        runner.execute_model(step(new_request("b", (2, 2, 5, 5, 6), (2, 1, 3), 4)))


def test_it_finds_two_requests_that_write_into_one_block() -> None:
    runner = RecordingRunner(4, 2)
    with pytest.raises(RuntimeError, match="a position 0, slot 0: holds"):
        runner.execute_model(step(new_request("a", (1,), (0,)), new_request("b", (2,), (0,))))


def test_it_finds_a_missing_copy_and_accepts_a_made_one() -> None:
    runner = RecordingRunner(4, 2)
    runner.execute_model(step(new_request("a", (1, 2), (0,))))
    fork = new_request("b", (1, 2), (1,), 1)
    with pytest.raises(RuntimeError, match="b position 0, slot 2: holds None"):
        runner.execute_model(step(fork))
    output = runner.execute_model(step(fork, copies=(BlockCopy(0, 1),)))
    assert output.sampled_token_ids == {"b": expected_output((1, 2), 0, 1, 50)[0]}


def test_it_finds_copies_that_depend_on_their_order() -> None:
    runner = RecordingRunner(4, 2)
    with pytest.raises(RuntimeError, match=r"blocks \{1\} are source and target of copies"):
        runner.execute_model(step(copies=(BlockCopy(0, 1), BlockCopy(1, 2))))


def test_a_failing_request_leaves_garbage() -> None:
    runner = RecordingRunner(4, 2)
    output = runner.execute_model(step(new_request("a", (1, 2), (0,))), failing=["a"])
    assert (output.sampled_token_ids, output.errors) == ({}, {"a": "a was made to fail"})
    with pytest.raises(RuntimeError, match="b position 0, slot 0: holds None"):
        runner.execute_model(step(new_request("b", (1, 2, 3), (0, 1), 2)))


def test_it_forgets_what_is_dropped() -> None:
    runner = RecordingRunner(4, 2)
    runner.execute_model(step(new_request("a", (1, 2), (0,))))
    assert runner.known_request_ids == {"a"}
    runner.execute_model(SchedulerOutput(dropped_request_ids=("a",)))
    assert runner.known_request_ids == set()
