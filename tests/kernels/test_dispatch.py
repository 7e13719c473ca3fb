"""Which level computes: what the processor runs, what was asked for, and what cannot be met."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import pytest

from refectory_kernels import native
from refectory_kernels.cpu_level import CpuLevel, available_levels, runs
from refectory_kernels.dispatch import select_level
from refectory_kernels.native import CpuFeatures, cpu_features

BOTH = (CpuLevel.AVX2, CpuLevel.AVX512)
ALL_FEATURES = CpuFeatures(*(True for _ in dataclasses.fields(CpuFeatures)))
NEEDED = {
    CpuLevel.AVX2: {"avx2", "fma"},
    CpuLevel.AVX512: {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"},
}


@pytest.mark.parametrize(
    ("available", "requested", "expected"),
    [
        (BOTH, None, CpuLevel.AVX512),
        (BOTH, "", CpuLevel.AVX512),
        (BOTH, "avx512", CpuLevel.AVX512),
        (BOTH, "avx2", CpuLevel.AVX2),
        (BOTH, "torch", None),
        (BOTH[:1], None, CpuLevel.AVX2),
        ((), None, None),
        ((), "", None),
        ((), "torch", None),
    ],
)
def test_choice(
    available: tuple[CpuLevel, ...], requested: str | None, expected: CpuLevel | None
) -> None:
    assert select_level(available, requested) is expected


@pytest.mark.parametrize(
    ("available", "requested", "message"),
    [
        (BOTH, "sse9", "'sse9'; allowed here: avx2, avx512, torch"),
        (BOTH, "AVX2", "'AVX2'; allowed here: avx2, avx512, torch"),
        (BOTH, " avx2", "' avx2'; allowed here: avx2, avx512, torch"),
        (BOTH[:1], "avx512", "'avx512'; allowed here: avx2, torch"),
        ((), "avx2", "'avx2'; allowed here: torch"),
    ],
)
def test_requests_that_cannot_be_met(
    available: tuple[CpuLevel, ...], requested: str, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        select_level(available, requested)


@pytest.mark.parametrize("level", CpuLevel)
def test_a_level_runs_where_all_it_needs_is_there(level: CpuLevel) -> None:
    assert runs(level, ALL_FEATURES)

    for field in dataclasses.fields(CpuFeatures):
        without = dataclasses.replace(ALL_FEATURES, **{field.name: False})
        assert runs(level, without) == (field.name not in NEEDED[level])


def test_levels_of_this_processor_are_those_it_runs() -> None:
    features = cpu_features()

    assert available_levels() == tuple(
        level for level in CpuLevel if features is not None and runs(level, features)
    )


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(native, "LIBRARY_NAME", "librefectory_absent.so")
    native.load_library.cache_clear()
    yield
    native.load_library.cache_clear()


@pytest.mark.usefixtures("no_library")
def test_without_the_library_there_is_no_level() -> None:
    assert available_levels() == ()
