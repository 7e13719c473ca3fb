"""Rotary position embedding on heads whose two halves are rotated against each other."""

from __future__ import annotations

import torch


def rotary_tables(
    num_positions: int, frequencies: torch.Tensor, scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of position * frequency, times `scale`.

    frequencies: [head_dim / 2], float32, radians a token
    scale: 1 but for RoPE scalings that sharpen attention
    returns two tensors [num_positions, head_dim / 2], float32

    Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".
    """
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return angles.cos() * scale, angles.sin() * scale


def rotary(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """(a, b) -> (a cos - b sin, b cos + a sin), a and b being a head's halves; in float32.

    heads: [num_tokens, num_heads, head_dim], queries or keys or both side by side
    cos, sin: [num_tokens, head_dim / 2], float32: the rows of `rotary_tables` at the tokens'
        positions
    returns a new tensor like `heads`
    """
    first, second = heads.float().chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(heads.dtype)
