"""`RequestUpdate`: what one step changed for one request, as its caller will hear it.

Owns a frozen copy of what the caller needs of the request. Knows no messages: the engine makes
one of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from refectory_server.core.request import FinishReason, Request


@dataclass(frozen=True, slots=True)
class RequestUpdate:
    """News of one request. The one with a `finish_reason` is its last."""

    request_id: str
    new_token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    message: str | None
    """What went wrong, in words; only where the finish reason alone does not say it."""
    num_cached_tokens: int
    scheduled_time: float | None
    """When it was first scheduled; None if it never was."""
    num_preemptions: int

    @staticmethod
    def of(
        request: Request, new_token_ids: tuple[int, ...] = (), message: str | None = None
    ) -> RequestUpdate:
        """The request as it is now."""
        return RequestUpdate(
            request.request_id,
            new_token_ids,
            request.finish_reason,
            message,
            request.num_cached_tokens,
            request.scheduled_time,
            request.num_preemptions,
        )
