"""Logits of the native library within 1e-4 of transformers', for every family, at every level."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from refectory_kernels.cpu_decoder import CpuDecoder
from refectory_kernels.cpu_level import CpuLevel, available_levels
from refectory_server.models.hf_config import read_hf_config
from refectory_server.models.native_decoder import build_native_decoder
from refectory_server.models.registry import read_decoder_spec
from refectory_server.models.source import resolve_model
from refectory_server.models.weights import load_weights
from refectory_server.testing.decoder_sequences import DecoderSequences, Logits
from refectory_server.testing.tiny_llama import TinyPair
from refectory_server.testing.tiny_models import (
    TINY_CONFIGS,
    capped_attention_of_gemma3,
    make_tiny_model,
)

TOKENS = [(11 * i * i + 5 * i + 1) % 131 for i in range(80)]
"""More than a tile of 64 keys, and several windows."""


@dataclass(frozen=True)
class Family:
    folder: Path
    expected: Logits
    """transformers' after every token."""

    def load(self, level: CpuLevel, dtype: torch.dtype) -> CpuDecoder:
        files = resolve_model(str(self.folder))
        spec = read_decoder_spec(read_hf_config(files))
        weights = load_weights(files, spec, dtype, lambda phase, progress: None)
        decoder = build_native_decoder(
            spec,
            weights,
            num_blocks=10,
            block_size=16,
            max_model_len=128,
            max_tokens=len(TOKENS),
            level=level,
            cpus=[None],
        )
        assert weights == {}
        return decoder


@pytest.fixture(scope="module", params=TINY_CONFIGS)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    folder = tmp_path_factory.mktemp("family")
    pair = TinyPair(folder, make_tiny_model(folder, TINY_CONFIGS[request.param]))
    with capped_attention_of_gemma3():
        return Family(folder, pair.logits(TOKENS).numpy())


@pytest.fixture(params=CpuLevel)
def level(request: pytest.FixtureRequest) -> CpuLevel:
    chosen: CpuLevel = request.param
    if chosen not in available_levels():
        pytest.skip(f"no native library here, or a processor without {chosen}")
    return chosen


def test_float32_token_by_token_and_in_chunks(family: Family, level: CpuLevel) -> None:
    sequences = DecoderSequences(family.load(level, torch.float32), [TOKENS])

    by_token = sequences.all_logits(0)
    sequences.restart(0)
    in_chunks = [sequences.step({0: count})[0] for count in (13, 66, 1)]

    np.testing.assert_allclose(by_token, family.expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(in_chunks, by_token[[12, 78, 79]])


def test_bfloat16_follows_float32(family: Family, level: CpuLevel) -> None:
    """The same best token wherever float32 has a clear one; 2^-8 is what a weight may be off by."""
    by_token = DecoderSequences(family.load(level, torch.bfloat16), [TOKENS]).all_logits(0)

    second, best = np.sort(family.expected)[:, -2:].T
    is_clear = best - second > 0.25 * family.expected.std()
    agrees = by_token.argmax(axis=1) == family.expected.argmax(axis=1)
    assert is_clear.sum() >= 30
    assert agrees[is_clear].all()
    assert agrees.mean() > 0.9
