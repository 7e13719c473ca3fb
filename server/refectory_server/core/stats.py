"""Numbers about the scheduler at one moment. Knows no metrics library."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """State after a step. Counters count since the start of the engine."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    """Blocks that no request holds; cached ones among them can be evicted."""
    num_scheduled_tokens: int = 0
    """Tokens of this step."""
    token_budget: int = 0
    """Tokens that this step might have held."""
    num_prefix_query_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_preemptions: int = 0
    num_preempted_tokens: int = 0
    """Computed tokens thrown away by preemptions."""

    @property
    def kv_cache_usage(self) -> float:
        """Share of blocks that requests hold, 0 to 1; cached but unheld blocks are free."""
        if self.num_blocks == 0:
            return 0.0
        return (self.num_blocks - self.num_free_blocks) / self.num_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimings:
    """One finished request in numbers. Times are seconds of one monotonic clock.

    `scheduled_time` and `first_token_time` are None for a request that never got that far; the
    intervals that need them are None then too.
    """

    arrival_time: float
    scheduled_time: float | None
    first_token_time: float | None
    last_token_time: float | None
    finish_time: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_preemptions: int = 0

    @property
    def e2e_s(self) -> float:
        return self.finish_time - self.arrival_time

    @property
    def queue_s(self) -> float | None:
        return _interval(self.arrival_time, self.scheduled_time)

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, queueing included."""
        return _interval(self.arrival_time, self.first_token_time)

    @property
    def prefill_s(self) -> float | None:
        return _interval(self.scheduled_time, self.first_token_time)

    @property
    def decode_s(self) -> float | None:
        return _interval(self.first_token_time, self.last_token_time)

    @property
    def inference_s(self) -> float | None:
        return _interval(self.scheduled_time, self.last_token_time)

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per output token after the first; None below two tokens."""
        if self.decode_s is None or self.num_output_tokens < 2:
            return None
        return self.decode_s / (self.num_output_tokens - 1)


def _interval(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
