"""Rotary tables of a `RopeSpec`. All in float32, as the models were trained."""

from __future__ import annotations

import math

import torch

from refectory_kernels import reference as ops
from refectory_server.models.rope_spec import (
    GivenScaling,
    LinearScaling,
    Llama3Scaling,
    RopeSpec,
    YarnScaling,
)


def rope_tables(
    rope: RopeSpec, num_positions: int, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin: two tensors [num_positions, head_dim / 2], float32."""
    scaling = rope.scaling
    scale = scaling.attention_factor if isinstance(scaling, YarnScaling) else 1.0
    return ops.rotary_tables(num_positions, rope_frequencies(rope, head_dim), scale)


def rope_frequencies(rope: RopeSpec, head_dim: int) -> torch.Tensor:
    """theta^(-2i / head_dim) for i < head_dim / 2, scaled: [head_dim / 2], float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    match rope.scaling:
        case None:
            return frequencies
        case LinearScaling(factor):
            return frequencies / factor
        case GivenScaling(factors):
            return frequencies / torch.tensor(factors)
        case Llama3Scaling() as scaling:
            return _llama3(frequencies, scaling)
        case YarnScaling() as scaling:
            return _yarn(frequencies, scaling, rope.theta)


def _llama3(frequencies: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Grattafiori et al. 2024, "The Llama 3 Herd of Models", and its published code."""
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies


def _yarn(frequencies: torch.Tensor, scaling: YarnScaling, theta: float) -> torch.Tensor:
    """Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models"."""
    head_dim = 2 * len(frequencies)

    def dimension(num_turns: float) -> float:
        """The dimension that turns so often over the original length."""
        wavelength = scaling.original_max_position / num_turns
        return head_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(theta))

    start, end = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        start, end = math.floor(start), math.ceil(end)
    start, end = max(start, 0), min(end, head_dim - 1)
    width = end - start or 0.001
    divided = ((torch.arange(head_dim // 2) - start) / width).clamp(0.0, 1.0)
    return divided * frequencies / scaling.factor + (1 - divided) * frequencies
