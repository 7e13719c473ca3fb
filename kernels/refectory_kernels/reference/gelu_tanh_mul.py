"""The gate of a gated MLP whose activation is GELU."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up, in float32, rounded once.

    gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³)))

    gate_up: [num_tokens, 2 * intermediate_size], gate in the first half, up in the second
    returns [num_tokens, intermediate_size] in the type of `gate_up`

    Hendrycks and Gimpel 2016, "Gaussian Error Linear Units"; Shazeer 2020, "GLU Variants Improve
    Transformer".
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.gelu(gate.float(), approximate="tanh") * up.float()).to(gate_up.dtype)
