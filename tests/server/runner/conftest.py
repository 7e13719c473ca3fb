"""What several files drive: a tiny Llama beside transformers' own."""

from __future__ import annotations

import pytest

from refectory_server.testing.tiny_llama import TinyPair, make_tiny_llama


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    folder = tmp_path_factory.mktemp("tiny-llama")
    return TinyPair(folder, make_tiny_llama(folder))
