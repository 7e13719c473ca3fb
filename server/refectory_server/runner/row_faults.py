"""Why one request of a step gets no token, in words for its client and the log."""

from __future__ import annotations

from refectory_server.runner.input_batch import RunnerRequest

NOTHING_LEFT = (
    "no token is left to choose from: allowed_token_ids, bad_words and min_tokens forbid all"
)
OUT_OF_MEMORY = "there was no memory to choose the next token with"


def logits_not_finite(request: RunnerRequest) -> str:
    return f"the model's logits after token {len(request.token_ids)} are NaN or infinite"
