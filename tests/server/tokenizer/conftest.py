"""The embedded model's tokenizer, loaded once."""

from __future__ import annotations

import pytest

from refectory_server.config import EMBEDDED_MODEL
from refectory_server.models.source import ModelFiles, resolve_model
from refectory_server.tokenizer.load import load_tokenizer
from refectory_server.tokenizer.tokenizer import HFTokenizer


@pytest.fixture(scope="session")
def embedded_files() -> ModelFiles:
    return resolve_model(EMBEDDED_MODEL)


@pytest.fixture(scope="session")
def embedded_tokenizer(embedded_files: ModelFiles) -> HFTokenizer:
    return load_tokenizer(embedded_files)
