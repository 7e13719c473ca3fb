"""What several files need: a tiny Llama on disk beside transformers' own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from refectory_server.testing.tiny_llama import TinyPair, make_tiny_llama


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small are computed faster by one thread than shared out among several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    folder = tmp_path_factory.mktemp("tiny-llama")
    return TinyPair(folder, make_tiny_llama(folder))
