"""The waiting queue: order by policy, removal from anywhere, memory that follows its length."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from refectory_server.core.request import Request, RequestStatus
from refectory_server.core.request_queue import RANK_BY_POLICY, RequestQueue
from refectory_server.testing.requests import make_request


def arrive(index: int, *, priority: int = 0, deadline: float | None = None) -> Request:
    request = make_request(f"r{index}", 3, priority=priority, deadline=deadline)
    request.arrival_index = index
    return request


def pop(queue: RequestQueue) -> Request:
    request = queue.peek()
    assert request is not None
    queue.remove(request)
    return request


def drain(queue: RequestQueue) -> list[str]:
    return [pop(queue).request_id for _ in range(len(queue))]


def test_fcfs_goes_by_arrival_whatever_the_order_of_adding() -> None:
    queue = RequestQueue(RANK_BY_POLICY["fcfs"])
    for index in (2, 0, 1):
        queue.add(arrive(index, priority=-index))
    assert [request.request_id for request in queue] == ["r0", "r1", "r2"]
    assert drain(queue) == ["r0", "r1", "r2"]


def test_priority_goes_lower_value_first_then_by_arrival() -> None:
    queue = RequestQueue(RANK_BY_POLICY["priority"])
    for index, priority in enumerate((5, -1, 5, 0)):
        queue.add(arrive(index, priority=priority))
    assert drain(queue) == ["r1", "r3", "r0", "r2"]


def test_peek_leaves_the_head_and_an_empty_queue_has_none() -> None:
    queue = RequestQueue(RANK_BY_POLICY["fcfs"])
    assert queue.peek() is None
    request = arrive(0)
    queue.add(request)
    assert queue.peek() is request
    assert (len(queue), queue.num_tokens) == (1, 3)


def test_a_removed_request_is_skipped_and_may_come_back() -> None:
    queue = RequestQueue(RANK_BY_POLICY["fcfs"])
    requests = [arrive(index) for index in range(4)]
    for request in requests:
        queue.add(request)
    queue.remove(requests[0])
    queue.remove(requests[2])
    assert (len(queue), queue.num_tokens) == (2, 6)
    queue.add(requests[2])
    assert drain(queue) == ["r1", "r2", "r3"]
    assert queue.num_tokens == 0


def test_a_prompt_counts_once_for_all_choices_until_one_has_to_compute_it_again() -> None:
    queue = RequestQueue(RANK_BY_POLICY["fcfs"])
    parent = make_request("p", 6)
    children = [make_request(f"p-{index}", 6, parent_id="p") for index in (1, 2)]
    for index, request in enumerate((parent, *children)):
        request.arrival_index = index
        queue.add(request)
    assert (len(queue), queue.num_tokens) == (3, 6)
    queue.remove(parent)
    queue.remove(children[0])
    assert queue.num_tokens == 0
    children[0].append_output_token(70)
    children[0].status = RequestStatus.PREEMPTED
    queue.add(children[0])
    assert queue.num_tokens == 7
    assert drain(queue) == ["p-1", "p-2"]
    assert queue.num_tokens == 0


def test_expiry_is_by_deadline_and_only_for_those_that_never_ran() -> None:
    queue = RequestQueue(RANK_BY_POLICY["fcfs"])
    late, early, never = arrive(0, deadline=2.0), arrive(1, deadline=1.0), arrive(2)
    begun = arrive(3, deadline=0.5)
    begun.status = RequestStatus.PREEMPTED
    for request in (late, early, never, begun):
        queue.add(request)
    assert queue.peek_expired(0.9) is None
    assert queue.peek_expired(1.0) is early
    queue.remove(early)
    assert queue.peek_expired(1.9) is None
    assert queue.peek_expired(99.0) is late
    queue.remove(late)
    assert queue.peek_expired(99.0) is None
    assert drain(queue) == ["r2", "r3"]


def test_memory_follows_the_length_not_the_history() -> None:
    queue = RequestQueue(RANK_BY_POLICY["fcfs"])
    queue.add(arrive(0, deadline=0.0))
    for index in range(1, 5000):
        request = arrive(index, deadline=1e9)
        queue.add(request)
        queue.remove(request)
    assert len(queue._by_rank._keys) <= 2 * len(queue) + 16
    assert len(queue._by_deadline._keys) <= 2 * len(queue) + 16


class QueueMachine(RuleBasedStateMachine):
    """The queue against a plain list that is sorted whenever it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = RequestQueue(RANK_BY_POLICY["priority"])
        self.waiting: list[Request] = []
        self.gone: list[Request] = []
        self.num_arrivals = 0

    @rule(priority=st.integers(-2, 2), deadline=st.none() | st.integers(0, 9))
    def add(self, priority: int, deadline: int | None) -> None:
        request = arrive(
            self.num_arrivals,
            priority=priority,
            deadline=None if deadline is None else float(deadline),
        )
        self.num_arrivals += 1
        self.waiting.append(request)
        self.queue.add(request)

    @precondition(lambda self: self.waiting)
    @rule()
    def pop(self) -> None:
        request = pop(self.queue)
        assert request is min(self.waiting, key=RANK_BY_POLICY["priority"])
        self.waiting.remove(request)
        request.status = RequestStatus.PREEMPTED
        self.gone.append(request)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(request)
        self.queue.remove(request)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.gone))
        self.gone.remove(request)
        self.waiting.append(request)
        self.queue.add(request)

    @rule(now=st.integers(0, 9))
    def look_for_expired(self, now: int) -> None:
        due = [
            (request.deadline, request.arrival_index)
            for request in self.waiting
            if request.deadline is not None
            and request.deadline <= now
            and request.status is RequestStatus.WAITING
        ]
        found = self.queue.peek_expired(now)
        expected = min(due)[1] if due else None
        assert (None if found is None else found.arrival_index) == expected

    @invariant()
    def agrees_with_the_list(self) -> None:
        expected = sorted(self.waiting, key=RANK_BY_POLICY["priority"])
        assert list(self.queue) == expected
        assert self.queue.peek() is (expected[0] if expected else None)
        assert self.queue.num_tokens == 3 * len(expected)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=40, stateful_step_count=40)
