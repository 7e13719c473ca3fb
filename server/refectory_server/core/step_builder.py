"""`StepBuilder`: one step while it is being scheduled.

Owns what is left of the token budget and the lists that become a `SchedulerOutput`. Decides
nothing and knows no queue.
"""

from __future__ import annotations

from refectory_server.core.kv_cache_manager import SlotAllocation
from refectory_server.core.request import Request
from refectory_server.core.scheduler_output import (
    BlockCopy,
    CachedRequestData,
    NewRequestData,
    Preemption,
    SchedulerOutput,
)


class StepBuilder:
    def __init__(self, token_budget: int) -> None:
        self.token_budget = token_budget
        """Tokens that may still be scheduled in this step."""
        self.preemptions: list[Preemption] = []
        self._new: list[NewRequestData] = []
        self._cached: list[CachedRequestData] = []
        self._num_scheduled_tokens: dict[str, int] = {}
        self._copies: list[BlockCopy] = []

    def add_cached(self, request: Request, num_tokens: int, slots: SlotAllocation) -> None:
        """A request that ran in an earlier step: the runner knows it."""
        self._cached.append(
            CachedRequestData(request.request_id, slots.block_ids, request.num_computed_tokens)
        )
        self._add_tokens(request, num_tokens, slots)

    def add_new(
        self, request: Request, num_tokens: int, slots: SlotAllocation, block_ids: tuple[int, ...]
    ) -> None:
        """A request just admitted: the runner is told everything."""
        self._new.append(
            NewRequestData(
                request_id=request.request_id,
                token_ids=tuple(request.token_ids),
                num_prompt_tokens=request.num_prompt_tokens,
                sampling_params=request.sampling_params,
                seed=request.seed,
                block_ids=block_ids,
                num_computed_tokens=request.num_computed_tokens,
                choice_index=request.choice_index,
            )
        )
        self._add_tokens(request, num_tokens, slots)

    def add_preemption(self, request: Request) -> None:
        self.preemptions.append(Preemption(request.request_id, request.num_computed_tokens))

    def build(self, dropped_request_ids: tuple[str, ...]) -> SchedulerOutput:
        return SchedulerOutput(
            new_requests=tuple(self._new),
            cached_requests=tuple(self._cached),
            num_scheduled_tokens=self._num_scheduled_tokens,
            block_copies=tuple(self._copies),
            dropped_request_ids=dropped_request_ids,
            preemptions=tuple(self.preemptions),
        )

    def _add_tokens(self, request: Request, num_tokens: int, slots: SlotAllocation) -> None:
        self._num_scheduled_tokens[request.request_id] = num_tokens
        self.token_budget -= num_tokens
        self._copies.extend(slots.copies)
