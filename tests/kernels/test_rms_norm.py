"""rms_norm against its formula in float64."""

from __future__ import annotations

import pytest
import torch

from refectory_kernels.reference import add_rms_norm, rms_norm

TOLERANCES = {torch.float32: 1e-6, torch.bfloat16: 8e-3}


def truth(
    hidden: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0
) -> torch.Tensor:
    values = hidden.double()
    factors = offset + weight.double()
    return values / (values.pow(2).mean(-1, keepdim=True) + eps).sqrt() * factors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_tokens", "hidden_size"), [(1, 1), (3, 7), (5, 576), (2, 1025)])
def test_formula(num_tokens: int, hidden_size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(num_tokens, hidden_size) * 3
    weight = torch.randn(hidden_size).to(dtype)

    result = rms_norm(hidden, weight, 1e-5)

    assert result.dtype == dtype
    torch.testing.assert_close(
        result.double(), truth(hidden, weight, 1e-5), rtol=TOLERANCES[dtype], atol=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_head_for_itself_with_weights_of_its_own(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    heads = torch.randn(4, 3, 10).to(dtype)
    weight = torch.randn(3, 10).to(dtype)

    result = rms_norm(heads, weight, 1e-6)

    for head in range(3):
        expected = truth(heads[:, head], weight[head], 1e-6)
        torch.testing.assert_close(
            result[:, head].double(), expected, rtol=TOLERANCES[dtype], atol=1e-6
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_offset_is_added_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(5, 64) * 3
    weight = (torch.randn(64) * 1e-3).to(dtype)  # 1 + weight is not exact in bfloat16

    result = rms_norm(hidden, weight, 1e-5, 1.0)

    torch.testing.assert_close(
        result.double(), truth(hidden, weight, 1e-5, 1.0), rtol=TOLERANCES[dtype], atol=1e-6
    )
    assert torch.equal(result, add_rms_norm(hidden, torch.zeros(5, 64), weight, 1e-5, 1.0))


def test_eps_keeps_a_zero_row_zero() -> None:
    result = rms_norm(torch.zeros(1, 4), torch.ones(4), 1e-5)

    assert result.tolist() == [[0.0, 0.0, 0.0, 0.0]]


def test_add_updates_the_residual_in_float32() -> None:
    torch.manual_seed(0)
    residual = torch.randn(3, 8)
    update = torch.randn(3, 8).bfloat16()
    weight = torch.randn(8).bfloat16()
    expected = residual + update.float()

    result = add_rms_norm(update, residual, weight, 1e-6)

    assert torch.equal(residual, expected)
    assert torch.equal(result, rms_norm(expected, weight, 1e-6))
