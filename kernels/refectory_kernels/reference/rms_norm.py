"""Root mean square layer normalisation, alone and fused with the residual add before it."""

from __future__ import annotations

import torch


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """y = hidden / sqrt(mean(hidden², last dimension) + eps) * weight, in float32, rounded once.

    hidden: [num_tokens, hidden_size], any float type
    weight: [hidden_size]
    returns [num_tokens, hidden_size] in the type of `weight`

    Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
    """
    values = hidden.float()
    scale = torch.rsqrt(values.square().mean(dim=-1, keepdim=True) + eps)
    return (values * scale * weight.float()).to(weight.dtype)


def add_rms_norm(
    update: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """residual += update, in place; returns `rms_norm(residual, weight, eps)`.

    update:   [num_tokens, hidden_size], what the layer before computed, any float type
    residual: [num_tokens, hidden_size], float32 so that a deep model does not round it away
    """
    residual += update
    return rms_norm(residual, weight, eps)
