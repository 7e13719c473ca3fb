"""Log-probabilities of chosen tokens, and of the most probable ones beside them.

Knows rows of the model's own logits; neither requests nor parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from refectory_server.core.scheduler_output import TokenLogprobs


def token_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """Of each row's chosen token, with the `num_top` most probable ones, all in float64.

    logits: [num_rows, vocab_size], every row with a finite largest value
    """
    logprobs = logits.double().log_softmax(dim=1)
    chosen = logprobs.gather(1, torch.tensor(token_ids).unsqueeze(1))
    ranks = (logprobs > chosen).sum(dim=1) + 1
    top = logprobs.topk(min(max(num_top), logits.shape[1]), dim=1)
    return [
        TokenLogprobs(logprob, rank, tuple(zip(top_ids[:num], top_logprobs[:num], strict=True)))
        for logprob, rank, top_ids, top_logprobs, num in zip(
            chosen.squeeze(1).tolist(),
            ranks.tolist(),
            top.indices.tolist(),
            top.values.tolist(),
            num_top,
            strict=True,
        )
    ]
