"""`SimulatedModelRunner`: tokens from a fixed function, no tensors.

Stands behind the whole real server where no model is wanted: dashboards, clients, tests. A token
depends on the request's prompt and its own position, never on the other requests of a step.
"""

from __future__ import annotations

import time
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from refectory_server.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from refectory_server.runner.interface import RunnerFacts


def simulated_token(prompt_token_ids: Sequence[int], position: int, alphabet: Sequence[int]) -> int:
    """The token at `position` of the sequence (the prompt's length is the first output's)."""
    key = zlib.crc32(array("Q", prompt_token_ids).tobytes())
    digest = zlib.crc32(position.to_bytes(8, "little"), key)
    return alphabet[digest % len(alphabet)]


@dataclass(slots=True)
class _RequestState:
    prompt_token_ids: tuple[int, ...]
    num_tokens: int
    num_computed_tokens: int


class SimulatedModelRunner:
    """Implements `ModelRunner`.

    `alphabet` holds the token ids to draw from; `step_seconds` gives a step's duration in
    seconds, which `sleep` waits out.
    """

    def __init__(
        self,
        facts: RunnerFacts,
        alphabet: Sequence[int],
        *,
        step_seconds: Callable[[SchedulerOutput], float] = lambda _: 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._facts = facts
        self._alphabet = tuple(alphabet)
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
        self._take(scheduler_output)
        if (seconds := self._step_seconds(scheduler_output)) > 0:
            self._sleep(seconds)
        sampled: dict[str, int] = {}
        for request_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
            state = self._states[request_id]
            state.num_computed_tokens += num_tokens
            if state.num_computed_tokens == state.num_tokens:
                sampled[request_id] = simulated_token(
                    state.prompt_token_ids, state.num_tokens, self._alphabet
                )
                state.num_tokens += 1
        return ModelRunnerOutput(sampled)

    def _take(self, scheduler_output: SchedulerOutput) -> None:
        for request_id in scheduler_output.dropped_request_ids:
            self._states.pop(request_id, None)
        for new in scheduler_output.new_requests:
            self._states[new.request_id] = _RequestState(
                new.token_ids[: new.num_prompt_tokens], len(new.token_ids), new.num_computed_tokens
            )
