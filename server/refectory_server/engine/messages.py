"""Messages between the API side and the engine, as they travel (msgpack).

Knows no transport. Everything is a frozen `msgspec.Struct` with a tag, so that one decoder reads
each direction. Times are seconds of CLOCK_MONOTONIC, which both processes share.
"""

from __future__ import annotations

import msgspec

from refectory_server.core.request import FinishReason
from refectory_server.core.request_update import RequestUpdate
from refectory_server.core.scheduler_output import TokenLogprobs
from refectory_server.core.stats import SchedulerStats
from refectory_server.runner.interface import RunnerFacts
from refectory_server.sampling_params import SamplingParams


def choice_id(request_id: str, index: int) -> str:
    """The id of choice `index` of a request; the first has the request's own."""
    return request_id if index == 0 else f"{request_id}-{index}"


class AddRequest(msgspec.Struct, frozen=True, tag=True):
    """API to engine: take this request. Answered by outputs, the last with a finish reason.

    With `sampling_params.n` above 1 it stands for so many requests, choice i under the id
    `choice_id(request_id, i)` and with `seed + i`: all are taken, or none, and then the refusal
    comes under `request_id`.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    seed: int
    arrival_time: float
    deadline: float | None = None
    priority: int = 0
    cache_salt: str | None = None
    lora_id: int | None = None


class AddGroup(msgspec.Struct, frozen=True, tag=True):
    """API to engine: take all of these or none. A refusal comes under the first one's id."""

    requests: list[AddRequest]


class AbortRequests(msgspec.Struct, frozen=True, tag=True):
    """API to engine: forget these. Unknown ids are ignored: they may have just finished."""

    request_ids: list[str]


class EngineOutput(msgspec.Struct, frozen=True):
    """News of one request after a step.

    The output with a `finish_reason` is the request's last. `rejection` is the label of the
    limit that refused it (then `finish_reason` is ERROR, `message` says why and `retry_after_s`
    when to ask again).
    """

    request_id: str
    new_token_ids: list[int] = []
    finish_reason: FinishReason | None = None
    message: str | None = None
    rejection: str | None = None
    retry_after_s: int = 0
    num_cached_tokens: int = 0
    scheduled_time: float | None = None
    """When the request was first scheduled; given with its first token."""
    num_preemptions: int = 0
    logprobs: list[TokenLogprobs] = []
    """One for each new token, where asked for."""

    @classmethod
    def from_update(
        cls, update: RequestUpdate, logprobs: TokenLogprobs | None = None
    ) -> EngineOutput:
        """`logprobs` are those of the update's one token."""
        return cls(
            update.request_id,
            list(update.new_token_ids),
            update.finish_reason,
            update.message,
            num_cached_tokens=update.num_cached_tokens,
            scheduled_time=update.scheduled_time,
            num_preemptions=update.num_preemptions,
            logprobs=[] if logprobs is None else [logprobs],
        )


class StepOutputs(msgspec.Struct, frozen=True, tag=True):
    """Engine to API: one message a step, also when no request has news: it is the heartbeat."""

    outputs: list[EngineOutput]
    stats: SchedulerStats
    time: float


class StartupProgress(msgspec.Struct, frozen=True, tag=True):
    """Engine to API while it loads."""

    phase: str
    progress: float


class EngineReady(msgspec.Struct, frozen=True, tag=True):
    """Engine to API: steps can run from now on."""

    facts: RunnerFacts
    startup_seconds: dict[str, float]


class EngineFailed(msgspec.Struct, frozen=True, tag=True):
    """Engine to API: last words. The process exits non-zero after it."""

    reason: str
    message: str


ToEngine = AddRequest | AddGroup | AbortRequests
FromEngine = StepOutputs | StartupProgress | EngineReady | EngineFailed
