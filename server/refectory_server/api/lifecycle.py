"""`Lifecycle`: serving, draining, stopping, and whether requests are still taken.

A pure state machine over an injected clock (seconds). Knows no sockets, signals or HTTP: the
in-flight middleware reports requests to it, `HttpServer` moves it and asks when to leave.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable

from refectory_server.errors import ServerError

REFUSAL_MARGIN_S = 10.0
"""Requests that arrive this close to the end of a drain could not finish: they are refused."""
QUIET_S = 1.0
"""A drain ends after this long without a request: clients that are sending on are still served."""
RETRY_AFTER_S = 5


class Unavailable(ServerError):
    """The server cannot take or finish a request just now. `code` is the word for machines."""

    def __init__(self, message: str, *, code: str, retry_after_s: int = RETRY_AFTER_S) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s


class Phase(enum.StrEnum):
    SERVING = "serving"
    DRAINING = "draining"
    STOPPING = "stopping"


class Lifecycle:
    """One server's life after its port is open.

    SERVING -> DRAINING (`drain`) -> STOPPING (`stop`, or the deadline, see `is_overdue`); `stop`
    may come at any time. Repeated calls change nothing.
    """

    def __init__(
        self, shutdown_timeout_s: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._shutdown_timeout_s = shutdown_timeout_s
        self._clock = clock
        self._phase = Phase.SERVING
        self._drain_start = -math.inf
        self._deadline = math.inf
        self._last_activity = -math.inf
        self._num_in_flight = 0
        self._num_drained = 0
        self._stop_listeners: set[Callable[[], None]] = set()

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def is_draining(self) -> bool:
        """On the way out: draining or stopping."""
        return self._phase is not Phase.SERVING

    @property
    def num_in_flight(self) -> int:
        """Requests between the first byte of their handler and the last byte sent."""
        return self._num_in_flight

    @property
    def num_drained(self) -> int:
        """Requests that have ended since the drain began."""
        return self._num_drained

    @property
    def seconds_draining(self) -> float:
        """Since the drain began; infinite where there was none."""
        return self._clock() - self._drain_start

    @property
    def seconds_left(self) -> float:
        """Until the end of the drain, never negative; infinite while serving."""
        return max(0.0, self._deadline - self._clock())

    @property
    def accepts_requests(self) -> bool:
        if self._phase is Phase.DRAINING:
            timeout_s = self._shutdown_timeout_s
            margin_s = min(REFUSAL_MARGIN_S, timeout_s / 2)
            return self.seconds_left > margin_s
        return self._phase is Phase.SERVING

    @property
    def is_drained(self) -> bool:
        """Draining, nothing in flight, and nothing has come or gone for `QUIET_S`."""
        return (
            self._phase is Phase.DRAINING
            and self._num_in_flight == 0
            and self._clock() - self._last_activity >= QUIET_S
        )

    @property
    def is_overdue(self) -> bool:
        """The drain's time is up."""
        return self._phase is Phase.DRAINING and self.seconds_left == 0.0

    def drain(self) -> None:
        if self._phase is Phase.SERVING:
            self._phase = Phase.DRAINING
            self._drain_start = self._last_activity = self._clock()
            self._deadline = self._drain_start + self._shutdown_timeout_s

    def stop(self) -> None:
        """End what is in flight: every stop listener is called once."""
        if self._phase is not Phase.STOPPING:
            self._phase = Phase.STOPPING
            self._deadline = min(self._deadline, self._clock())
            for listener in tuple(self._stop_listeners):
                listener()

    def request_started(self) -> None:
        """Count a request in. Raises `Unavailable`, and does not count it, if it came too late."""
        if not self.accepts_requests:
            raise self.unavailable()
        self._num_in_flight += 1
        self._last_activity = self._clock()

    def request_finished(self) -> None:
        self._num_in_flight -= 1
        self._num_drained += self.is_draining
        self._last_activity = self._clock()

    def add_stop_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on `stop`; returns what takes it off the list again."""
        self._stop_listeners.add(listener)
        return lambda: self._stop_listeners.discard(listener)

    def unavailable(self) -> Unavailable:
        """What a request is told that cannot be served because of the shutdown."""
        return Unavailable(
            "the server is shutting down; another replica or a retry will serve the request",
            code="shutting_down",
        )
