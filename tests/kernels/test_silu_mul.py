"""silu_mul against its formula in float64."""

from __future__ import annotations

import pytest
import torch

from refectory_kernels.reference import silu_mul

TOLERANCES = {torch.float32: 1e-6, torch.bfloat16: 8e-3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_tokens", "size"), [(1, 1), (3, 17), (2, 1536)])
def test_formula(num_tokens: int, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gate_up = (torch.randn(num_tokens, 2 * size) * 4).to(dtype)

    result = silu_mul(gate_up)

    gate, up = gate_up.double().chunk(2, dim=-1)
    expected = gate / (1 + torch.exp(-gate)) * up
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, rtol=TOLERANCES[dtype], atol=1e-6)
