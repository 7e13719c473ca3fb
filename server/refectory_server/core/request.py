"""`Request`: one generation from admission to finish.

Owns its token ids and counts. Does not know the queue it stands in, nor what its blocks hold.
The scheduler alone changes `status` and appends tokens.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from refectory_server.sampling_params import SamplingParams


class FinishReason(enum.StrEnum):
    """Why a request ended, in the words of the API and the metrics."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    DEADLINE = "deadline_exceeded"


class RequestStatus(enum.Enum):
    WAITING = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    FINISHED = enum.auto()


class Request:
    """A request inside the engine. All times are seconds of the engine's monotonic clock."""

    __slots__ = (
        "_token_ids",
        "arrival_index",
        "arrival_time",
        "cache_salt",
        "choice_index",
        "deadline",
        "finish_reason",
        "lora_id",
        "max_output_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "parent_id",
        "priority",
        "request_id",
        "sampling_params",
        "scheduled_time",
        "seed",
        "status",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        seed: int,
        arrival_time: float,
        deadline: float | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        lora_id: int | None = None,
        parent_id: str | None = None,
        choice_index: int = 0,
    ) -> None:
        if not prompt_token_ids:
            raise ValueError(f"request {request_id} has no prompt tokens")
        self.request_id = request_id
        self._token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(prompt_token_ids)
        self.sampling_params = sampling_params
        self.seed = seed
        self.arrival_time = arrival_time
        self.arrival_index = 0
        """Place in the order of arrival, for life. Numbered by the scheduler."""
        self.deadline = deadline
        """A request still waiting for its first step at this time is ended. None: never."""
        self.priority = priority
        self.cache_salt = cache_salt
        self.lora_id = lora_id
        self.parent_id = parent_id
        """The request whose prompt this one repeats (choice i > 0 of n): it shares its blocks."""
        self.choice_index = choice_index
        """Which choice of n it is; `seed` says so already to whoever draws from it."""
        self.status = RequestStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.num_computed_tokens = 0
        """Tokens whose KV is in the blocks."""
        self.num_cached_tokens = 0
        """Of those, taken from the prefix cache at the first admission."""
        self.num_preemptions = 0
        self.scheduled_time: float | None = None
        self.max_output_tokens = 0
        """The limit in force: `max_tokens` capped by context and pool. Set at admission."""

    @property
    def token_ids(self) -> Sequence[int]:
        """Prompt and output. Read only: append with `append_output_token`."""
        return self._token_ids

    @property
    def num_tokens(self) -> int:
        return len(self._token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self._token_ids) - self.num_prompt_tokens

    def append_output_token(self, token_id: int) -> None:
        self._token_ids.append(token_id)
