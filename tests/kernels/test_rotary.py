"""rotary against complex multiplication in float64."""

from __future__ import annotations

import pytest
import torch

from refectory_kernels.reference import rotary, rotary_tables

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_heads", "head_dim"), [(1, 2), (3, 6), (12, 64), (2, 256)])
def test_is_a_rotation_by_position_times_frequency(
    num_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    half = head_dim // 2
    positions = torch.tensor([0, 1, 17, 99])
    heads = torch.randn(4, num_heads, head_dim).to(dtype)
    frequencies = 10_000.0 ** (-2 * torch.arange(half, dtype=torch.float64) / head_dim)
    cos, sin = rotary_tables(100, frequencies.float())

    result = rotary(heads, cos[positions], sin[positions])

    angles = positions.double()[:, None] * frequencies
    turn = torch.polar(torch.ones_like(angles), angles)[:, None, :]
    turned = torch.complex(heads[..., :half].double(), heads[..., half:].double()) * turn
    expected = torch.cat((turned.real, turned.imag), dim=-1)
    assert result.dtype == dtype
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)


def test_position_zero_changes_nothing() -> None:
    cos, sin = rotary_tables(1, torch.tensor([1.0, 0.01]))
    heads = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])

    assert torch.equal(rotary(heads, cos, sin), heads)


def test_scale_multiplies_both_tables() -> None:
    cos, sin = rotary_tables(3, torch.tensor([1.0, 0.5]), scale=1.5)

    plain_cos, plain_sin = rotary_tables(3, torch.tensor([1.0, 0.5]))
    assert torch.equal(cos, plain_cos * 1.5)
    assert torch.equal(sin, plain_sin * 1.5)
    assert plain_cos[2].tolist() == torch.tensor([2.0, 1.0]).cos().tolist()
