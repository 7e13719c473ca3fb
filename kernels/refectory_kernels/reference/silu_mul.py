"""The gate of a gated MLP."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up with silu(x) = x / (1 + exp(-x)), in float32, rounded once.

    gate_up: [num_tokens, 2 * intermediate_size], gate in the first half, up in the second
    returns [num_tokens, intermediate_size] in the type of `gate_up`

    Shazeer 2020, "GLU Variants Improve Transformer".
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.silu(gate.float()) * up.float()).to(gate_up.dtype)
