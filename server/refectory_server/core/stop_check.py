"""When a request has all its tokens.

Owns the order of the checks. Knows no text: stop strings are found where the text is.
"""

from __future__ import annotations

from collections.abc import Set

from refectory_server.core.request import FinishReason, Request


def find_stop(request: Request, eos_token_ids: Set[int]) -> FinishReason | None:
    """Why the request ends with its last output token; None: it goes on.

    A token that ends the text counts as STOP also where it is the last one allowed. Only the
    limit ends a request that has not had its `min_tokens`: they come before the token that ends.
    """
    token_id = request.token_ids[-1]
    params = request.sampling_params
    if request.num_output_tokens > params.min_tokens:
        if token_id in eos_token_ids and not params.ignore_eos:
            return FinishReason.STOP
        if token_id in params.stop_token_ids:
            return FinishReason.STOP
    if request.num_output_tokens >= request.max_output_tokens:
        return FinishReason.LENGTH
    return None
