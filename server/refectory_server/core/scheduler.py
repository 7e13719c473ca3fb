"""`Scheduler`: which request computes how many tokens in the next step.

Owns every request from arrival to finish, the order of service, preemption and the limits of the
queue. Does not know the model, text, HTTP or the time of day; the engine's loop is the caller.

There is no prefill phase and no decode phase. A request has `num_computed_tokens`, and each step
lets it catch up with `num_tokens`: a prompt, a part of one, what a prefix hit left of one, a
recomputation after a preemption and a single decoded token are all that one rule.

Every request ends. A request is refused or capped so that alone it fits the pool less the
watermark, and waiting requests hold no blocks: with nothing running, the head of the queue always
fits. With something running, the first of `running` computes at least one token a step, because
it is never a victim while another is left and fits once none is. Nobody overtakes the head, so
those in front of it finish or step aside until it is that first one itself.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from refectory_server.config import SchedulerConfig
from refectory_server.core.arrival_checks import (
    check_queue_limits,
    check_same_prompt,
    compute_max_output_tokens,
)
from refectory_server.core.integrity import check_requests
from refectory_server.core.kv_cache_manager import KVCacheManager, SlotAllocation
from refectory_server.core.request import FinishReason, Request, RequestStatus
from refectory_server.core.request_queue import RANK_BY_POLICY, RequestQueue
from refectory_server.core.request_update import RequestUpdate
from refectory_server.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from refectory_server.core.stats import SchedulerStats
from refectory_server.core.step_builder import StepBuilder
from refectory_server.core.stop_check import find_stop
from refectory_server.core.token_budget import TokenBudget


class Scheduler:
    """Called in turn: `schedule`, the runner, `update_from_output`; the rest at any moment."""

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        kv_cache_manager: KVCacheManager,
        *,
        max_model_len: int,
        eos_token_ids: Iterable[int],
        step_s: float | None = None,
    ) -> None:
        """step_s: seconds that a step shall take; None: it may hold the limit of tokens"""
        self._config = scheduler_config
        self._kv = kv_cache_manager
        self._max_model_len = max_model_len
        self._eos_token_ids = frozenset(eos_token_ids)
        self._rank = RANK_BY_POLICY[scheduler_config.scheduling_policy]
        self._requests: dict[str, Request] = {}
        """Every unfinished request."""
        self._waiting = RequestQueue(self._rank)
        self._running: list[Request] = []
        """Sorted by rank, so that the last is the one to preempt."""
        self._parents: dict[str, Request] = {}
        """Of the children never admitted yet, by the child's id. The object, not its id: an id
        can be used again, for another prompt, before the child runs."""
        self._budget = TokenBudget(scheduler_config.token_limit, step_s)
        self._num_arrivals = 0
        self._has_left_waiting = False
        """The latest step had no room for all that waited, so newcomers wait behind them."""
        self._dropped_request_ids: list[str] = []
        self._updates: list[RequestUpdate] = []
        self._num_scheduled_tokens = 0
        self._num_preemptions = 0
        self._num_preempted_tokens = 0

    def add_request(self, request: Request) -> None:
        """Queue a request and set its `max_output_tokens`.

        Raises `PromptTooLong`, `QueueFull`, or `ValueError` for an id in use and for a child
        that differs from its parent in what their KV and their order depend on.
        """
        if request.request_id in self._requests:
            raise ValueError(f"request id {request.request_id} is in use")
        parent = None if request.parent_id is None else self._requests.get(request.parent_id)
        if parent is not None:
            check_same_prompt(parent, request)
        max_output_tokens = compute_max_output_tokens(request, self._max_model_len, self._kv)
        num_free_seats = self._config.max_num_seqs - len(self._running)
        check_queue_limits(
            request, self._waiting, self._config, 0 if self._has_left_waiting else num_free_seats
        )
        request.max_output_tokens = max_output_tokens
        self._num_arrivals += 1
        request.arrival_index = self._num_arrivals
        self._requests[request.request_id] = request
        self._waiting.add(request)
        if parent is not None:
            self._parents[request.request_id] = parent

    def abort(
        self, request_ids: Iterable[str], reason: FinishReason = FinishReason.ABORT
    ) -> list[RequestUpdate]:
        """End requests now, their blocks freed. Unknown ids are ignored: they may just have ended.

        Allowed while the runner computes a step: its results for these are then dropped.
        """
        found = [self._requests[i] for i in dict.fromkeys(request_ids) if i in self._requests]
        return [self._finish(request, reason) for request in found]

    def schedule(self, now: float) -> SchedulerOutput:
        """The next step's work: at least one token while any request is unfinished, else empty.

        `now` is the engine's clock in seconds. Requests that it ends by their deadline are told
        by `take_updates`, or with the next `update_from_output`.
        """
        self._end_expired(now)
        step = StepBuilder(self._budget.start_step(len(self._running)))
        self._continue_running(step)
        if not step.preemptions:
            self._admit_waiting(step, now)
        self._has_left_waiting = len(self._waiting) > 0
        self._num_scheduled_tokens = self._budget.num_tokens - step.token_budget
        if not self._num_scheduled_tokens:
            return SchedulerOutput()  # no reason to call the runner: the dropped ids wait
        dropped, self._dropped_request_ids = tuple(self._dropped_request_ids), []
        return step.build(dropped)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, runner_output: ModelRunnerOutput
    ) -> list[RequestUpdate]:
        """Take in a step's results: count, cache, append, finish. Returns all news not yet told.

        Raises `RuntimeError` when the runner sampled for other requests than it should have.
        """
        for request_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
            request = self._requests.get(request_id)
            if request is None or request.status is not RequestStatus.RUNNING:
                continue  # aborted meanwhile; perhaps another one waits under its id
            error = runner_output.errors.get(request_id)
            if error is not None:
                self._updates.append(self._finish(request, FinishReason.ERROR, message=error))
                continue
            request.num_computed_tokens += num_tokens
            self._kv.cache_computed(request)
            self._take_sampled(request, runner_output.sampled_token_ids.get(request_id))
        return self.take_updates()

    def observe_step(self, scheduler_output: SchedulerOutput, seconds: float) -> None:
        """How long the runner took for it: the next steps' budget follows."""
        num_scheduled_tokens = scheduler_output.num_scheduled_tokens
        self._budget.observe(sum(num_scheduled_tokens.values()), len(num_scheduled_tokens), seconds)

    def take_updates(self) -> list[RequestUpdate]:
        """News that no call has returned yet."""
        updates, self._updates = self._updates, []
        return updates

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything: schedule tokens, or tell news not yet told."""
        return bool(self._requests or self._updates)

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_blocks=self._kv.num_blocks,
            num_free_blocks=self._kv.num_free_blocks,
            num_scheduled_tokens=self._num_scheduled_tokens,
            token_budget=self._budget.num_tokens,
            num_prefix_query_tokens=self._kv.num_prefix_query_tokens,
            num_prefix_hit_tokens=self._kv.num_prefix_hit_tokens,
            num_preemptions=self._num_preemptions,
            num_preempted_tokens=self._num_preempted_tokens,
        )

    def check_integrity(self) -> None:
        """Raises `RuntimeError` when queue, running list and blocks contradict each other."""
        check_requests(self._requests, self._running, list(self._waiting), self._kv)
        ranks = [self._rank(request) for request in self._running]
        if ranks != sorted(set(ranks)) or len(ranks) > self._config.max_num_seqs:
            raise RuntimeError(f"ranks of the running requests are {ranks}")

    def _end_expired(self, now: float) -> None:
        while (request := self._waiting.peek_expired(now)) is not None:
            waited = now - request.arrival_time
            message = f"the request waited {waited:.3f} s for its first step, longer than it may"
            self._updates.append(self._finish(request, FinishReason.DEADLINE, message=message))

    def _continue_running(self, step: StepBuilder) -> None:
        """Let running requests catch up, by rank, each leaving a token for those behind it."""
        num_scheduled = 0
        while num_scheduled < len(self._running):
            request = self._running[num_scheduled]
            num_behind = len(self._running) - num_scheduled - 1
            num_tokens = self._num_tokens_for(request, step.token_budget - num_behind)
            slots = self._allocate_or_preempt(request, num_tokens, step)
            if slots is None:
                return  # it was the last one, and stepped aside itself
            step.add_cached(request, num_tokens, slots)
            num_scheduled += 1

    def _admit_waiting(self, step: StepBuilder, now: float) -> None:
        """Admit from the head of the queue while budget, seats and blocks last."""
        while step.token_budget and len(self._running) < self._config.max_num_seqs:
            request = self._waiting.peek()
            if request is None or (num_computed := self._reserve_blocks(request)) is None:
                return
            self._waiting.remove(request)
            self._parents.pop(request.request_id, None)
            if request.scheduled_time is None:
                request.scheduled_time = now
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = num_computed
            bisect.insort(self._running, request, key=self._rank)
            num_tokens = self._num_tokens_for(request, step.token_budget)
            slots = self._kv.allocate_slots(request, num_tokens)
            assert slots is not None, f"request {request.request_id} has no room it was promised"
            step.add_new(request, num_tokens, slots, self._kv.block_ids(request))

    def _reserve_blocks(self, request: Request) -> int | None:
        """Blocks for the head of the queue: how many of its tokens they hold, None: not yet.

        A child never admitted yet forks its parent, and waits while that one computes the
        prompt. The parent cannot wait behind it, so it runs or is finished; a child of a finished
        parent, or one back from a preemption, is a request like any other.
        """
        parent = self._parents.get(request.request_id)
        if parent is None or parent.status is not RequestStatus.RUNNING:
            num_computed = self._kv.admit(request)
            if num_computed is not None and request.scheduled_time is None:
                request.num_cached_tokens = num_computed
            return num_computed
        if parent.num_computed_tokens < parent.num_prompt_tokens:
            return None
        return self._kv.fork(parent, request)

    def _num_tokens_for(self, request: Request, limit: int) -> int:
        num_tokens = min(request.num_tokens - request.num_computed_tokens, limit)
        threshold = self._config.long_prefill_token_threshold
        return min(num_tokens, threshold) if threshold else num_tokens

    def _allocate_or_preempt(
        self, request: Request, num_tokens: int, step: StepBuilder
    ) -> SlotAllocation | None:
        """Slots for the step; None if the request itself was the last to take blocks from."""
        while (slots := self._kv.allocate_slots(request, num_tokens)) is None:
            victim = self._running[-1]
            self._preempt(victim, step)
            if victim is request:
                return None
        return slots

    def _preempt(self, request: Request, step: StepBuilder) -> None:
        """Back to its place in the queue; what it computed is computed again later."""
        step.add_preemption(request)
        self._num_preemptions += 1
        self._num_preempted_tokens += request.num_computed_tokens
        self._stop_running(request)
        self._kv.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self._waiting.add(request)

    def _take_sampled(self, request: Request, token_id: int | None) -> None:
        is_caught_up = request.num_computed_tokens == request.num_tokens
        if is_caught_up == (token_id is None):
            raise RuntimeError(
                f"the runner sampled {token_id} for request {request.request_id}, which has "
                f"{request.num_computed_tokens} of {request.num_tokens} tokens computed"
            )
        if token_id is None:
            return
        request.append_output_token(token_id)
        reason = find_stop(request, self._eos_token_ids)
        if reason is None:
            self._updates.append(RequestUpdate.of(request, (token_id,)))
        else:
            self._updates.append(self._finish(request, reason, (token_id,)))

    def _finish(
        self,
        request: Request,
        reason: FinishReason,
        new_token_ids: tuple[int, ...] = (),
        message: str | None = None,
    ) -> RequestUpdate:
        """End a request wherever it is; it holds nothing afterwards."""
        if request.status is RequestStatus.RUNNING:
            self._stop_running(request)
        else:
            self._waiting.remove(request)
        self._kv.free(request, discard=reason is FinishReason.ERROR)
        self._parents.pop(request.request_id, None)
        del self._requests[request.request_id]
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        return RequestUpdate.of(request, new_token_ids, message)

    def _stop_running(self, request: Request) -> None:
        del self._running[bisect.bisect_left(self._running, self._rank(request), key=self._rank)]
        self._dropped_request_ids.append(request.request_id)
