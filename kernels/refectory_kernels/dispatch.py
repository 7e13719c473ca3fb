"""Which implementation computes. Pure: the caller says what there is and what was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from refectory_kernels.cpu_level import CpuLevel

TORCH = "torch"
"""Plain torch in place of the native library."""


def select_level(available: Sequence[CpuLevel], requested: str | None) -> CpuLevel | None:
    """The instruction level to use, or None for plain torch.

    available: what the processor runs, the best last
    requested: a level's name or "torch"; None or empty: the best there is
    Raises `ValueError` for a request that cannot be met.
    """
    if not requested:
        return available[-1] if available else None
    names = [*available, TORCH]
    if requested not in names:
        raise ValueError(f"{requested!r}; allowed here: {', '.join(names)}")
    return None if requested == TORCH else CpuLevel(requested)
