"""The instruction levels that the native library's tests run at."""

from __future__ import annotations

import pytest

from refectory_kernels.cpu_level import CpuLevel, available_levels


@pytest.fixture(scope="session", params=CpuLevel)
def level(request: pytest.FixtureRequest) -> CpuLevel:
    chosen: CpuLevel = request.param
    if chosen not in available_levels():
        pytest.skip(f"no native library here, or a processor without {chosen}")
    return chosen
