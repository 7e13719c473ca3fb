"""gelu_tanh_mul against its formula in float64."""

from __future__ import annotations

import math

import pytest
import torch

from refectory_kernels.reference import gelu_tanh_mul

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 8e-3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_tokens", "size"), [(1, 1), (3, 17), (2, 1536)])
def test_formula(num_tokens: int, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gate_up = (torch.randn(num_tokens, 2 * size) * 4).to(dtype)

    result = gelu_tanh_mul(gate_up)

    gate, up = gate_up.double().chunk(2, dim=-1)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    expected = gate / 2 * (1 + inner.tanh()) * up
    assert result.dtype == dtype
    # 1 + tanh cancels in float32 where the gate is far below 0 and the result next to nothing.
    torch.testing.assert_close(result.double(), expected, rtol=TOLERANCES[dtype], atol=1e-5)
