"""`StepGate`: lets a test hold the simulated runner inside a step."""

from __future__ import annotations

import threading

from refectory_server.core.scheduler_output import SchedulerOutput


class StepGate:
    """To be used as a `SimulatedModelRunner`'s `step_seconds`: a step waits for its permit.

    Open at first. Open it before the engine shuts down, or the engine's thread never ends.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._is_open = True
        self._num_permits = 0

    def __call__(self, scheduler_output: SchedulerOutput) -> float:
        with self._condition:
            self._condition.wait_for(lambda: self._is_open or self._num_permits > 0)
            if not self._is_open:
                self._num_permits -= 1
        return 0.0

    def close(self) -> None:
        with self._condition:
            self._is_open = False

    def open(self) -> None:
        with self._condition:
            self._is_open = True
            self._condition.notify_all()

    def allow(self, num_steps: int) -> None:
        """Let so many steps through a closed gate."""
        with self._condition:
            self._num_permits += num_steps
            self._condition.notify_all()
