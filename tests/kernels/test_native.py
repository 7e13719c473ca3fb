"""The native library against what the kernel says about the processor."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from refectory_kernels import native
from refectory_kernels.native import CpuFeatures, cpu_features

CPUINFO = Path("/proc/cpuinfo")


@pytest.fixture(autouse=True)
def fresh_library() -> Iterator[None]:
    native.load_library.cache_clear()
    yield
    native.load_library.cache_clear()


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not CPUINFO.is_file(), reason="reads x86 flags of Linux"
)
def test_features_equal_the_kernels_flags() -> None:
    features = cpu_features()
    if features is None:
        pytest.skip("refectory_kernels was built without its native library")
    lines = CPUINFO.read_text().splitlines()
    flags = set(next(line for line in lines if line.startswith("flags")).split())

    found = {field.name: getattr(features, field.name) for field in fields(features)}

    assert found == {name: name in flags for name in found}


def test_without_the_library_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LIBRARY_NAME", "librefectory_absent.so")

    assert cpu_features() is None


def test_text_lists_what_is_there() -> None:
    values = dict.fromkeys((field.name for field in fields(CpuFeatures)), False)

    assert str(CpuFeatures(**values)) == "none"
    assert str(CpuFeatures(**{**values, "avx2": True, "amx_bf16": True})) == "avx2 amx_bf16"
