"""Which implementation of the ops runs on a device. Pure: probes nothing, swaps nothing."""

from __future__ import annotations

import enum


class Implementation(enum.StrEnum):
    """A set of ops with the signatures of `reference`."""

    TORCH = "torch"


_BY_DEVICE: dict[str, tuple[Implementation, ...]] = {
    "cpu": (Implementation.TORCH,),
    "cuda": (Implementation.TORCH,),
}
"""Device type to implementations, best first."""


def select_impl(device: str, requested: str = "auto") -> Implementation:
    """The best implementation for `device` ("cpu", "cuda"), or the one requested.

    Raises `ValueError` for an unknown device and for a request that the device cannot meet.
    """
    if device not in _BY_DEVICE:
        raise ValueError(f"device {device} is unknown; allowed: {', '.join(_BY_DEVICE)}")
    choices = _BY_DEVICE[device]
    if requested == "auto":
        return choices[0]
    for choice in choices:
        if choice == requested:
            return choice
    raise ValueError(
        f"kernels {requested} are not available on {device}; allowed: auto, {', '.join(choices)}"
    )
