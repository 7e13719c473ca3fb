"""select_impl: the best by default, the requested one or an error."""

from __future__ import annotations

import pytest

from refectory_kernels.dispatch import Implementation, select_impl


def test_auto_takes_the_best() -> None:
    assert select_impl("cpu") is Implementation.TORCH
    assert select_impl("cuda", "auto") is Implementation.TORCH


def test_explicit_request() -> None:
    assert select_impl("cpu", "torch") is Implementation.TORCH


def test_request_that_cannot_be_met_raises() -> None:
    with pytest.raises(ValueError, match="kernels triton are not available on cpu; allowed: auto"):
        select_impl("cpu", "triton")


def test_unknown_device_raises() -> None:
    with pytest.raises(ValueError, match="device tpu is unknown; allowed: cpu, cuda"):
        select_impl("tpu")
