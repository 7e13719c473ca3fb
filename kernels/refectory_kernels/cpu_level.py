"""Instruction levels of the native library, and which of them this processor runs."""

from __future__ import annotations

from enum import StrEnum

from refectory_kernels.native import CpuFeatures, cpu_features


class CpuLevel(StrEnum):
    """By the library's names."""

    AVX2 = "avx2"
    AVX512 = "avx512"


def runs(level: CpuLevel, features: CpuFeatures) -> bool:
    """Whether a processor with these features runs the level's code."""
    has_avx2 = features.avx2 and features.fma
    if level is CpuLevel.AVX2:
        return has_avx2
    return (
        has_avx2
        and features.avx512f
        and features.avx512bw
        and features.avx512dq
        and features.avx512vl
    )


def available_levels() -> tuple[CpuLevel, ...]:
    """The best last; empty without the library, and on a processor that runs none of them."""
    features = cpu_features()
    if features is None:
        return ()
    return tuple(level for level in CpuLevel if runs(level, features))
