"""`StepDriver`: drives a `ModelRunner` by hand, in place of the scheduler.

Owns what a scheduler would know (tokens, counts, blocks). Blocks are handed out in a shuffled
order, so that no test passes by their being adjacent.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from refectory_server.core.scheduler_output import (
    BlockCopy,
    CachedRequestData,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from refectory_server.runner.interface import ModelRunner
from refectory_server.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


@dataclass(slots=True)
class DrivenRequest:
    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    block_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    is_announced: bool = False

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]


class StepDriver:
    """Requests by id, and the blocks that none of them holds."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.requests: dict[str, DrivenRequest] = {}
        self._free_ids = list(range(runner.facts.num_blocks))
        random.Random(0).shuffle(self._free_ids)
        self._copies: list[BlockCopy] = []
        self._dropped: list[str] = []

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams = GREEDY,
        *,
        seed: int = 0,
    ) -> None:
        self.requests[request_id] = DrivenRequest(
            request_id, list(prompt), len(prompt), params, seed
        )

    def fork(self, request_id: str, source_id: str, *, seed: int = 0) -> None:
        """A new request that starts with copies of all blocks that `source_id` has computed."""
        source = self.requests[source_id]
        known = source.token_ids[: source.num_computed_tokens + 1]
        fork = DrivenRequest(request_id, known, source.num_prompt_tokens, source.params, seed)
        fork.num_computed_tokens = source.num_computed_tokens
        for block_id in source.block_ids:
            fork.block_ids.append(self._free_ids.pop())
            self._copies.append(BlockCopy(block_id, fork.block_ids[-1]))
        self.requests[request_id] = fork

    def preempt(self, request_id: str) -> None:
        """Take a request's blocks away; it starts anew with all of its tokens."""
        request = self.requests[request_id]
        self._free_ids = request.block_ids + self._free_ids
        request.block_ids = []
        request.num_computed_tokens = 0
        request.is_announced = False
        self._dropped.append(request_id)

    def finish(self, request_id: str) -> None:
        self.preempt(request_id)
        del self.requests[request_id]

    def step(self, num_scheduled_tokens: Mapping[str, int]) -> ModelRunnerOutput:
        """Run one step with these requests in this order, and take in what it sampled."""
        new: list[NewRequestData] = []
        cached: list[CachedRequestData] = []
        for request_id, num_tokens in num_scheduled_tokens.items():
            request = self.requests[request_id]
            has_grown = self._grow(request, request.num_computed_tokens + num_tokens)
            block_ids = tuple(request.block_ids)
            if request.is_announced:
                cached.append(
                    CachedRequestData(
                        request_id, block_ids if has_grown else None, request.num_computed_tokens
                    )
                )
            else:
                new.append(
                    NewRequestData(
                        request_id,
                        tuple(request.token_ids),
                        request.num_prompt_tokens,
                        request.params,
                        request.seed,
                        block_ids,
                        request.num_computed_tokens,
                    )
                )
                request.is_announced = True
        output = self.runner.execute_model(
            SchedulerOutput(
                tuple(new),
                tuple(cached),
                dict(num_scheduled_tokens),
                tuple(self._copies),
                tuple(self._dropped),
            )
        )
        self._copies, self._dropped = [], []
        for request_id, num_tokens in num_scheduled_tokens.items():
            self.requests[request_id].num_computed_tokens += num_tokens
        for request_id, token_id in output.sampled_token_ids.items():
            self.requests[request_id].token_ids.append(token_id)
        return output

    def generate(self, num_output_tokens: int, *, chunk: int = 10**9) -> dict[str, list[int]]:
        """Run all requests side by side, `chunk` tokens of each a step at most; output ids."""
        while True:
            counts = {
                request.request_id: min(chunk, len(request.token_ids) - request.num_computed_tokens)
                for request in self.requests.values()
                if len(request.output_ids) < num_output_tokens
            }
            if not counts:
                return {name: request.output_ids for name, request in self.requests.items()}
            self.step(counts)

    def _grow(self, request: DrivenRequest, num_tokens: int) -> bool:
        """Give it blocks for `num_tokens`; whether it needed any."""
        num_blocks = -(-num_tokens // self.runner.facts.block_size)
        num_missing = num_blocks - len(request.block_ids)
        request.block_ids += [self._free_ids.pop() for _ in range(num_missing)]
        return num_missing > 0
