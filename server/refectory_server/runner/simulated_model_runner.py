"""`SimulatedModelRunner`: tokens from a fixed function, time from a cost model, no tensors.

Stands behind the whole real server where no model is wanted: dashboards, autoscaling, clients,
tests. A token depends on the request's prompt and seed and on its own position, never on the
other requests of a step. Of the sampling parameters only those that say when a request ends count.
"""

from __future__ import annotations

import itertools
import math
import time
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from refectory_server.core.scheduler_output import (
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
    TokenLogprobs,
)
from refectory_server.runner.interface import RunnerFacts
from refectory_server.simulation_profile import StepCost


def simulated_token(
    prompt_token_ids: Sequence[int],
    position: int,
    alphabet: Sequence[int],
    *,
    seed: int = 0,
) -> int:
    """The token at `position` of the sequence (the prompt's length is the first output's).

    `seed` is the one the request asked for, 0 where it did not; choice i of n has i more.
    """
    return alphabet[_digest(_request_key(prompt_token_ids, seed), position) % len(alphabet)]


def simulated_num_tokens(
    prompt_token_ids: Sequence[int], mean_output_tokens: int, *, seed: int = 0
) -> int:
    """Output tokens until the answer ends by itself, the end token included.

    Geometrically distributed over requests, a fixed number for each.
    """
    key = _request_key(prompt_token_ids, seed)
    count = 1
    while not _is_end(key, len(prompt_token_ids) + count - 1, mean_output_tokens):
        count += 1
    return count


def _request_key(prompt_token_ids: Sequence[int], seed: int) -> int:
    # Choices count on from the seed, perhaps past the largest.
    wrapped = (seed + 2**63) % 2**64 - 2**63
    return zlib.crc32(array("q", (wrapped, *prompt_token_ids)).tobytes())


def _digest(key: int, position: int) -> int:
    return zlib.crc32(position.to_bytes(8, "little"), key)


def _is_end(key: int, position: int, mean_output_tokens: int) -> bool:
    # Another digest than the token's, so that ends do not depend on letters.
    return mean_output_tokens > 0 and _digest(~key & 0xFFFFFFFF, position) % mean_output_tokens == 0


@dataclass(slots=True)
class _RequestState:
    key: int
    num_tokens: int
    num_computed_tokens: int
    first_end: int | None
    """Position from which on it may end by itself; None: never."""
    num_logprobs: int | None


class SimulatedModelRunner:
    """Implements `ModelRunner`.

    `alphabet` holds the token ids to draw from. Answers end by themselves after
    `mean_output_tokens` on average with the first of the facts' end tokens; 0: never. `sleep`
    waits out the seconds that `step_seconds` gives a step.
    """

    def __init__(
        self,
        facts: RunnerFacts,
        alphabet: Sequence[int],
        *,
        mean_output_tokens: int = 0,
        step_seconds: Callable[[SchedulerOutput], float] = lambda _: 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._facts = facts
        self._alphabet = tuple(alphabet)
        self._mean_output_tokens = mean_output_tokens
        self._step_seconds = step_seconds
        self._sleep = sleep
        self._states: dict[str, _RequestState] = {}

    @property
    def facts(self) -> RunnerFacts:
        return self._facts

    @property
    def num_states(self) -> int:
        """Requests that the runner remembers."""
        return len(self._states)

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        for request_id in scheduler_output.dropped_request_ids:
            self._states.pop(request_id, None)
        for new in scheduler_output.new_requests:
            self._states[new.request_id] = _new_state(new)
        if (seconds := self._step_seconds(scheduler_output)) > 0:
            self._sleep(seconds)
        output = ModelRunnerOutput()
        for request_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
            state = self._states[request_id]
            state.num_computed_tokens += num_tokens
            if state.num_computed_tokens == state.num_tokens:
                token_id = self._next_token(state)
                output.sampled_token_ids[request_id] = token_id
                if state.num_logprobs is not None:
                    output.logprobs[request_id] = self._logprobs(token_id, state.num_logprobs)
                state.num_tokens += 1
        return output

    def _next_token(self, state: _RequestState) -> int:
        position = state.num_tokens
        may_end = state.first_end is not None and position >= state.first_end
        if may_end and _is_end(state.key, position, self._mean_output_tokens):
            return self._facts.eos_token_ids[0]
        return self._alphabet[_digest(state.key, position) % len(self._alphabet)]

    def _logprobs(self, token_id: int, num_top: int) -> TokenLogprobs:
        """All tokens of the alphabet are equally probable; the chosen one comes first."""
        logprob = -math.log(len(self._alphabet))
        others = (other for other in self._alphabet if other != token_id)
        top = itertools.islice(itertools.chain((token_id,), others), num_top)
        return TokenLogprobs(logprob, 1, tuple((other, logprob) for other in top))


class StepClock:
    """Seconds of each step by a `StepCost`. Follows the requests' context lengths itself."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._context_tokens: dict[str, int] = {}

    def __call__(self, scheduler_output: SchedulerOutput) -> float:
        context = self._context_tokens
        for request_id in scheduler_output.dropped_request_ids:
            context.pop(request_id, None)
        for new in scheduler_output.new_requests:
            context[new.request_id] = new.num_computed_tokens
        num_prefill_tokens = num_context_tokens = 0
        for request_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
            context[request_id] += num_tokens
            num_context_tokens += context[request_id]
            if num_tokens > 1:  # one token is what a decode computes
                num_prefill_tokens += num_tokens
        cost = self._cost
        return (
            cost.fixed
            + cost.per_prefill_token * num_prefill_tokens
            + cost.per_sequence * len(scheduler_output.num_scheduled_tokens)
            + cost.per_context_token * num_context_tokens
        )


def _new_state(new: NewRequestData) -> _RequestState:
    params = new.sampling_params
    return _RequestState(
        _request_key(new.token_ids[: new.num_prompt_tokens], (params.seed or 0) + new.choice_index),
        len(new.token_ids),
        new.num_computed_tokens,
        None if params.ignore_eos else new.num_prompt_tokens + params.min_tokens,
        params.logprobs,
    )
