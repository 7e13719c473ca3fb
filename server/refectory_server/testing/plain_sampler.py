"""The rules of sampling once more: one row, one token at a time, in float64 and without tensors.

What the sampler is compared with. Shares nothing with it but the random numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from refectory_server.runner.philox import uniforms
from refectory_server.sampling_params import SamplingParams


def plain_adjust(
    logits: Sequence[float],
    params: SamplingParams,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    eos_token_ids: Iterable[int] = (),
) -> list[float]:
    """Logits after masks, bias and penalties."""
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(eos_token_ids))
    adjusted = []
    for token_id, logit in enumerate(logits):
        value = float(logit) + params.logit_bias.get(token_id, 0.0)
        if params.allowed_token_ids and token_id not in params.allowed_token_ids:
            value = -np.inf
        if len(output_ids) < params.min_tokens and token_id in ends:
            value = -np.inf
        for *beginning, last in params.bad_words_token_ids:
            before = list(output_ids[len(output_ids) - len(beginning) :])
            if token_id == last and before == beginning:
                value = -np.inf
        if token_id in prompt_ids or token_id in output_ids:
            penalty = params.repetition_penalty
            value = value / penalty if value > 0 else value * penalty
        value -= params.frequency_penalty * output_ids.count(token_id)
        value -= params.presence_penalty * (token_id in output_ids)
        adjusted.append(value)
    return adjusted


def plain_choice(
    adjusted: Sequence[float], params: SamplingParams, seed: int, position: int
) -> int:
    """The token at `position` of the sequence."""
    if params.is_greedy:
        return int(np.argmax(adjusted))
    return _inverse_cdf(adjusted, params, float(uniforms([seed], [position])[0]))


def near_choices(
    adjusted: Sequence[float], params: SamplingParams, seed: int, position: int
) -> set[int]:
    """Tokens that rounding errors in the logits could make of it, the right one included.

    Errors are 1e-4 at most in the random number, and 1e-4 at random in the logits.
    """
    rng = np.random.default_rng(0)
    number = 0.0 if params.is_greedy else float(uniforms([seed], [position])[0])
    found = {plain_choice(adjusted, params, seed, position)}
    for _ in range(20):
        noisy = np.array(adjusted) + rng.uniform(-1e-4, 1e-4, len(adjusted))
        if params.is_greedy:
            found.add(int(np.argmax(noisy)))
        else:
            moved = min(max(number + rng.choice([-1e-4, 1e-4]), 0.0), 1 - 2**-53)
            found.add(_inverse_cdf(noisy.tolist(), params, moved))
    return found


def _inverse_cdf(adjusted: Sequence[float], params: SamplingParams, number: float) -> int:
    scaled = np.array(adjusted, dtype=np.float64)
    weights = np.exp((scaled - scaled.max()) / params.temperature)
    kept = {i for i, w in enumerate(weights) if w >= params.min_p}
    if 0 < params.top_k < len(weights):
        last = sorted((weights[i] for i in kept), reverse=True)[: params.top_k][-1]
        kept = {i for i in kept if weights[i] >= last}
    if params.top_p < 1:
        target = params.top_p * sum(weights[i] for i in sorted(kept))
        nucleus: set[int] = set()
        reached = 0.0
        for i in sorted(kept, key=lambda i: (-weights[i], i)):
            if reached >= target:
                break
            nucleus.add(i)
            reached += weights[i]
        kept = nucleus
    total = sum(weights[i] for i in sorted(kept))
    target = number * total
    reached = 0.0
    for i in sorted(kept):
        reached += weights[i]
        if reached > target:
            return i
    raise AssertionError(f"{target} is not below the sum {reached}")
