"""Fixtures of the tests that compute: a tiny Llama beside transformers' own, and its threads.

Torch is imported by those who ask for them, and by nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

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


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    from refectory_server.testing.tiny_llama import TinyPair, make_tiny_llama

    folder = tmp_path_factory.mktemp("tiny-llama")
    return TinyPair(folder, make_tiny_llama(folder))
