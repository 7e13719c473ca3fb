"""`RequestQueue`: the requests that wait, in the order in which they will be admitted.

Owns the order (fcfs or priority) and the search for passed deadlines. Does not know blocks, nor
what happens to a request that leaves.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Generic, Literal, TypeVar

from refectory_server.core.request import Request, RequestStatus

Rank = tuple[int, int]
"""Lower goes first. Unique, and kept for life: a preempted request returns to its own place."""


def arrival_rank(request: Request) -> Rank:
    return (0, request.arrival_index)


def priority_rank(request: Request) -> Rank:
    return (request.priority, request.arrival_index)


RANK_BY_POLICY: dict[Literal["fcfs", "priority"], Callable[[Request], Rank]] = {
    "fcfs": arrival_rank,
    "priority": priority_rank,
}

_Key = TypeVar("_Key", tuple[int, int], tuple[float, int])


class _LazyHeap(Generic[_Key]):
    """Requests by unique key, smallest first; removal leaves its key behind for later.

    A key without a live request is skipped when it reaches the top, and all of them are swept
    once they outnumber the live ones: every operation is O(log n) amortised, memory O(n).
    """

    def __init__(self) -> None:
        self._keys: list[_Key] = []
        self._live: dict[_Key, Request] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Request]:
        """In order. O(n log n)."""
        return (self._live[key] for key in sorted(self._live))

    def add(self, key: _Key, request: Request) -> None:
        self._live[key] = request
        heapq.heappush(self._keys, key)

    def first(self) -> tuple[_Key, Request] | None:
        while self._keys:
            key = self._keys[0]
            request = self._live.get(key)
            if request is not None:
                return key, request
            heapq.heappop(self._keys)
        return None

    def discard(self, key: _Key) -> None:
        self._live.pop(key, None)
        if len(self._keys) > 2 * len(self._live) + 16:
            self._keys = list(self._live)
            heapq.heapify(self._keys)


class RequestQueue:
    """Waiting requests by rank. Every operation is O(log n) amortised."""

    def __init__(self, rank: Callable[[Request], Rank]) -> None:
        self._rank = rank
        self._by_rank: _LazyHeap[tuple[int, int]] = _LazyHeap()
        self._by_deadline: _LazyHeap[tuple[float, int]] = _LazyHeap()
        self.num_tokens = 0
        """Tokens to compute for all that wait."""

    def __len__(self) -> int:
        return len(self._by_rank)

    def __iter__(self) -> Iterator[Request]:
        """Head first. O(n log n)."""
        return iter(self._by_rank)

    def add(self, request: Request) -> None:
        """At its rank's place. A request that has run before has no deadline any more."""
        self._by_rank.add(self._rank(request), request)
        self.num_tokens += _num_tokens_to_compute(request)
        if request.deadline is not None and request.status is RequestStatus.WAITING:
            self._by_deadline.add((request.deadline, request.arrival_index), request)

    def peek(self) -> Request | None:
        """The head."""
        first = self._by_rank.first()
        return None if first is None else first[1]

    def remove(self, request: Request) -> None:
        """The request waits here."""
        self._by_rank.discard(self._rank(request))
        self.num_tokens -= _num_tokens_to_compute(request)
        if request.deadline is not None:
            self._by_deadline.discard((request.deadline, request.arrival_index))

    def peek_expired(self, now: float) -> Request | None:
        """The request with the earliest deadline, if that is `now` or before."""
        first = self._by_deadline.first()
        return None if first is None or first[0][0] > now else first[1]


def _num_tokens_to_compute(request: Request) -> int:
    """The same from `add` to `remove`. A choice that has not run yet shares its parent's prompt."""
    is_fork = request.parent_id is not None and request.status is RequestStatus.WAITING
    return 0 if is_fork else request.num_tokens
