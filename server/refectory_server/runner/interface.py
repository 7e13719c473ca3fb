"""`ModelRunner`: the seam between scheduling and arithmetic.

Owns the protocol and the facts a runner learns while it starts. Imports no torch, so that the
simulator and every test of the engine run without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from refectory_server.core.scheduler_output import ModelRunnerOutput, SchedulerOutput

ReportProgress = Callable[[str, float], None]
"""(phase, fraction done in [0, 1]); called at least once at the start of each start-up phase."""


@dataclass(frozen=True, slots=True)
class RunnerFacts:
    """What is known only once the model is loaded. Never written back into a config."""

    num_blocks: int
    """KV blocks in the pool."""
    block_size: int
    max_model_len: int
    """Tokens a request can hold: the model's limit, the flag, or what the pool can hold."""
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    kv_bytes_per_token: int
    description: str
    """One line for the start-up log: executor, device, precision, threads."""
    spare_cpus: tuple[int, ...] = ()
    """CPUs that the computing threads leave to the API process; empty: it may run anywhere."""
    step_s: float | None = None
    """Seconds that a step shall take where no flag fixes its tokens; None: it may hold the limit.
    Only for a runner whose results do not depend on how tokens are grouped into steps."""


class ModelRunner(Protocol):
    """Executes steps. One thread calls it; it keeps state per request between steps."""

    @property
    def facts(self) -> RunnerFacts: ...

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step: copies, forward pass, sampling.

        Raises only when the runner as a whole is unusable; a failure of one request is an entry
        in `ModelRunnerOutput.errors`.
        """
        ...
