"""Root mean square layer normalisation, alone and fused with the residual add before it."""

from __future__ import annotations

import torch


def rms_norm(
    hidden: torch.Tensor, weight: torch.Tensor, eps: float, weight_offset: float = 0.0
) -> torch.Tensor:
    """y = hidden / sqrt(mean(hidden², last dimension) + eps) * (weight_offset + weight).

    Computed in float32, rounded once.

    hidden: [num_tokens, hidden_size], or [num_tokens, num_heads, head_dim] where every head is
        normed for itself; any float type
    weight: [hidden_size] or [num_heads, head_dim]
    returns a tensor of the shape of `hidden` in the type of `weight`

    Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"; per head: Dehghani et al.
    2023, "Scaling Vision Transformers to 22 Billion Parameters".
    """
    values = hidden.float()
    scale = torch.rsqrt(values.square().mean(dim=-1, keepdim=True) + eps)
    factors = weight.float()
    if weight_offset:
        factors = factors + weight_offset
    return (values * scale * factors).to(weight.dtype)


def add_rms_norm(
    update: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    weight_offset: float = 0.0,
) -> torch.Tensor:
    """residual += update, in place; returns `rms_norm(residual, weight, eps, weight_offset)`.

    update:   [num_tokens, hidden_size], what the layer before computed, any float type
    residual: [num_tokens, hidden_size], float32 so that a deep model does not round it away
    """
    residual += update
    return rms_norm(residual, weight, eps, weight_offset)
