"""`Lifecycle`: exact states against a clock that the test moves."""

from __future__ import annotations

import math

import pytest

from refectory_server.api.lifecycle import Lifecycle, Phase, Unavailable


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_serving_takes_requests_and_never_ends(clock: Clock) -> None:
    lifecycle = Lifecycle(60, clock=clock)
    clock.now += 1e6
    assert lifecycle.phase is Phase.SERVING
    assert not lifecycle.is_draining
    assert lifecycle.accepts_requests
    assert lifecycle.seconds_left == math.inf
    assert not lifecycle.is_drained
    assert not lifecycle.is_overdue


@pytest.mark.parametrize(("timeout_s", "margin_s"), [(60, 10), (20, 10), (19, 9.5), (4, 2)])
def test_a_drain_takes_requests_until_shortly_before_its_end(
    clock: Clock, timeout_s: float, margin_s: float
) -> None:
    lifecycle = Lifecycle(timeout_s, clock=clock)
    lifecycle.drain()
    clock.now = 100 + timeout_s - margin_s - 0.5
    lifecycle.request_started()
    clock.now = 100 + timeout_s - margin_s
    with pytest.raises(Unavailable) as refusal:
        lifecycle.request_started()
    assert refusal.value.code == "shutting_down"
    assert refusal.value.retry_after_s == 5
    assert lifecycle.num_in_flight == 1


def test_a_drain_ends_after_a_quiet_second_with_nothing_in_flight(clock: Clock) -> None:
    lifecycle = Lifecycle(60, clock=clock)
    for _ in range(3):
        lifecycle.request_started()
    lifecycle.request_finished()
    lifecycle.request_finished()
    lifecycle.drain()
    clock.now += 30
    assert not lifecycle.is_drained
    assert lifecycle.num_drained == 0
    lifecycle.request_finished()
    clock.now += 0.5
    assert not lifecycle.is_drained
    lifecycle.request_started()
    lifecycle.request_finished()
    clock.now += 0.5
    assert not lifecycle.is_drained
    clock.now += 0.5
    assert (lifecycle.num_drained, lifecycle.seconds_draining) == (2, 31.5)
    assert lifecycle.is_drained


def test_a_drain_is_overdue_at_its_deadline_and_a_second_one_does_not_move_it(
    clock: Clock,
) -> None:
    lifecycle = Lifecycle(60, clock=clock)
    lifecycle.drain()
    clock.now += 59
    lifecycle.drain()
    assert lifecycle.seconds_left == 1
    assert not lifecycle.is_overdue
    clock.now += 1
    assert lifecycle.is_overdue


def test_no_time_to_drain_means_overdue_at_once(clock: Clock) -> None:
    lifecycle = Lifecycle(0, clock=clock)
    lifecycle.drain()
    assert lifecycle.is_overdue
    assert not lifecycle.accepts_requests


def test_stop_tells_each_listener_once_and_takes_nothing_more(clock: Clock) -> None:
    lifecycle = Lifecycle(60, clock=clock)
    heard: list[str] = []
    lifecycle.add_stop_listener(lambda: heard.append("stays"))
    remove = lifecycle.add_stop_listener(lambda: heard.append("leaves"))
    remove()
    lifecycle.stop()
    lifecycle.stop()
    assert heard == ["stays"]
    assert lifecycle.phase is Phase.STOPPING
    assert lifecycle.seconds_left == 0
    assert not lifecycle.accepts_requests
    lifecycle.drain()
    assert lifecycle.phase is Phase.STOPPING
