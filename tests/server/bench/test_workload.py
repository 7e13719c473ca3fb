"""What a random workload asks for, and when."""

from __future__ import annotations

import itertools

import pytest

from refectory_server.bench.workload import WORDS, RandomWorkload


def test_lengths_without_a_range_are_exact_and_all_is_sent_at_once() -> None:
    requests = RandomWorkload(num_prompts=3, input_len=5, output_len=7).requests()
    words = [str(request.prompt).split(" ") for request in requests]
    assert [len(prompt) for prompt in words] == [5, 5, 5]
    assert {word for prompt in words for word in prompt} <= set(WORDS)
    assert [(request.max_tokens, request.send_at_s) for request in requests] == [(7, 0.0)] * 3


def test_a_range_reaches_both_ends_and_nothing_beyond() -> None:
    workload = RandomWorkload(num_prompts=2000, input_len=10, output_len=4, range_ratio=0.5)
    requests = workload.requests()
    inputs = {len(str(request.prompt).split(" ")) for request in requests}
    assert inputs == set(range(5, 16))
    assert {request.max_tokens for request in requests} == set(range(2, 7))


def test_a_seed_is_a_workload() -> None:
    def requests(seed: int) -> object:
        return RandomWorkload(
            num_prompts=4, input_len=8, output_len=2, request_rate=3, seed=seed
        ).requests()

    assert requests(1) == requests(1)
    assert requests(1) != requests(2)


@pytest.mark.parametrize(("burstiness", "deviation"), [(1.0, 1.0), (4.0, 0.5)])
def test_arrivals_have_the_rate_and_the_burstiness(burstiness: float, deviation: float) -> None:
    """A gamma distribution's deviation is its mean over the root of its shape."""
    workload = RandomWorkload(
        num_prompts=20_001, input_len=1, output_len=1, request_rate=50, burstiness=burstiness
    )
    times = [request.send_at_s for request in workload.requests()]
    assert times[0] == 0.0
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(1 / 50, rel=0.03)
    assert variance**0.5 / mean == pytest.approx(deviation, rel=0.03)
