"""Fixtures of the tests that compute: a tiny Llama beside transformers' own, who computes it, and
its threads.

Torch is imported by those who ask for them, and by nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from refectory_kernels.cpu_level import CpuLevel, available_levels

if TYPE_CHECKING:
    from refectory_server.testing.tiny_llama import TinyPair

FOLDERS_OF_TINY_TENSORS = ("models", "runner")


@pytest.fixture(scope="module", autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tensors as small as theirs are computed faster by one thread than shared out."""
    if request.path.parent.name not in FOLDERS_OF_TINY_TENSORS:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", params=[None, *CpuLevel], ids=lambda level: level or "torch")
def level(request: pytest.FixtureRequest) -> CpuLevel | None:
    """Who computes: the native library at a level, or, where it is None, plain torch."""
    chosen: CpuLevel | None = request.param
    if chosen is not None and chosen not in available_levels():
        pytest.skip(f"no native library here, or a processor without {chosen}")
    return chosen


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    from refectory_server.testing.tiny_llama import TinyPair, make_tiny_llama

    folder = tmp_path_factory.mktemp("tiny-llama")
    return TinyPair(folder, make_tiny_llama(folder))
