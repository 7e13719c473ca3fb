"""What one step asks of a runner, and what the runner gives back.

Ints, strings and frozen values only, so that a step can cross a process boundary. Knows neither
`Request` objects nor tensors. Written by `Scheduler.schedule`, read by every `ModelRunner`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from refectory_server.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class NewRequestData:
    """A request the runner has no state for: it is new, or back from a preemption.

    `token_ids` is everything known so far, prompt and output; the first `num_computed_tokens`
    of them already have their KV in `block_ids`.
    """

    request_id: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    sampling_params: SamplingParams
    seed: int
    """The seed in force: the one asked for, or the one drawn at arrival."""
    block_ids: tuple[int, ...]
    num_computed_tokens: int
    choice_index: int = 0
    """Which of its prompt's n choices it is."""


@dataclass(frozen=True, slots=True)
class CachedRequestData:
    """A request the runner already has state for: only what changed.

    The runner has appended every token that it sampled itself, so none is repeated here.
    """

    request_id: str
    block_ids: tuple[int, ...] | None
    """The whole block table when it changed (it grew, or a block was copied); else None."""
    num_computed_tokens: int


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy one KV block before the step's forward pass (copy on write).

    No block is both a source and a target in one step: copies can be done in any order, or all
    at once.
    """

    source_id: int
    target_id: int


@dataclass(frozen=True, slots=True)
class Preemption:
    """A running request gave its blocks back and waits again; its tokens are not lost."""

    request_id: str
    num_lost_tokens: int
    """Computed tokens whose KV has to be computed again, or found in the prefix cache."""


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step's work, in the order in which the runner shall lay out the rows."""

    new_requests: tuple[NewRequestData, ...] = ()
    cached_requests: tuple[CachedRequestData, ...] = ()
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    """Request id to number of tokens, at least 1 each. Iteration order is the row order."""
    block_copies: tuple[BlockCopy, ...] = ()
    dropped_request_ids: tuple[str, ...] = ()
    """Finished or preempted since the last step: the runner forgets their state first."""
    preemptions: tuple[Preemption, ...] = ()
    """For the log. To the runner they are dropped requests like any other."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How probable a chosen token was to the model, before penalties and temperature."""

    logprob: float
    """Natural logarithm; -inf for a token the model rules out."""
    rank: int
    """1 for the most probable token."""
    top: tuple[tuple[int, float], ...]
    """(token id, log-probability) of the most probable tokens, as many as asked for."""


@dataclass(frozen=True, slots=True)
class ModelRunnerOutput:
    """One step's result.

    `sampled_token_ids` has an entry for exactly those scheduled requests whose known tokens are
    all computed after this step and that did not fail. `errors` names those that failed alone
    (NaN logits, say), with the reason in words. `logprobs` has an entry for each sampled token
    whose request asks for it.
    """

    sampled_token_ids: dict[str, int] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    logprobs: dict[str, TokenLogprobs] = field(default_factory=dict)
