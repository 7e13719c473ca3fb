"""`TokenBudget`: how many tokens the next step may hold.

A fixed number, or what a step computes in about the seconds that it shall take. Then the latest
steps say how many: a chunk of a prompt takes longer the deeper it lies in its context, the more
requests decode beside it and the busier the machine is. Knows no requests and no clock.
"""

from __future__ import annotations

FIRST_TOKENS = 128
MIN_CHUNK_TOKENS = 32
"""Beside one for each running request: prompts advance however long decoding takes. Matrix kernels
compute rows of a step this small nearly as fast as those of a large one."""


class TokenBudget:
    """In turn: `start_step`, and `observe` once the step is computed."""

    def __init__(self, limit: int, step_s: float | None) -> None:
        """limit: of any step; step_s: seconds that a step shall take, None: the limit is fixed"""
        self._limit = limit
        self._step_s = step_s
        self._wanted = limit if step_s is None else FIRST_TOKENS
        self.num_tokens = 0
        """Of the latest step."""

    def start_step(self, num_running: int) -> int:
        """The step's budget; a token for each of the running requests is always in it."""
        least = num_running + MIN_CHUNK_TOKENS
        self.num_tokens = min(self._limit, max(least, self._wanted))
        return self.num_tokens

    def observe(self, num_tokens: int, num_requests: int, seconds: float) -> None:
        """Learn from a step: nothing where all decoded, or where it was short with room to spare.

        One step at most halves or doubles the next: it may have been slow by chance.
        """
        if self._step_s is None or num_tokens == num_requests:
            return
        if num_tokens == self.num_tokens or seconds > self._step_s:
            within = min(max(seconds, self._step_s / 2), self._step_s * 2)
            self._wanted = int(num_tokens * self._step_s / within)
