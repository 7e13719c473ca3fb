"""Float32 logits within 1e-4 of transformers', for every family and shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from refectory_server.models.decoder_spec import Activation, AttentionSpec, DecoderSpec
from refectory_server.models.hf_config import read_hf_config
from refectory_server.models.registry import read_decoder_spec
from refectory_server.models.rope_spec import RopeSpec
from refectory_server.models.source import resolve_model
from refectory_server.models.torch_decoder import TorchDecoder
from refectory_server.models.weights import load_weights
from refectory_server.testing.decoder_logits import decoder_logits
from refectory_server.testing.tiny_llama import TinyPair, make_tiny_llama
from refectory_server.testing.tiny_models import (
    TINY_CONFIGS,
    capped_attention_of_gemma3,
    make_tiny_model,
)

TOKENS = [(11 * i * i + 5 * i + 1) % 131 for i in range(37)]


def load_spec(folder: Path) -> DecoderSpec:
    return read_decoder_spec(read_hf_config(resolve_model(str(folder))))


def load_decoder(folder: Path, spec: DecoderSpec | None = None) -> TorchDecoder:
    """spec: in place of the checkpoint's own."""
    files = resolve_model(str(folder))
    spec = spec or load_spec(folder)
    weights = load_weights(files, spec, torch.float32, lambda phase, progress: None)
    decoder = TorchDecoder(spec, weights, spec.max_position)
    assert weights == {}
    return decoder


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72},
        {"num_attention_heads": 5, "num_key_value_heads": 5, "hidden_size": 40},
        {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 56, "head_dim": 10},
        {"num_hidden_layers": 1, "rms_norm_eps": 1e-2},
        {"rope_parameters": {"rope_theta": 123_456.0, "rope_type": "default"}},
    ],
    ids=str,
)
def test_logits_equal_transformers(overrides: dict[str, Any], tmp_path: Path) -> None:
    pair = TinyPair(tmp_path, make_tiny_llama(tmp_path, **overrides))

    logits = decoder_logits(load_decoder(tmp_path), TOKENS, chunk=13)

    torch.testing.assert_close(logits, pair.logits(TOKENS), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_every_family(name: str, tmp_path: Path) -> None:
    pair = TinyPair(tmp_path, make_tiny_model(tmp_path, TINY_CONFIGS[name]))
    with capped_attention_of_gemma3():
        expected = pair.logits(TOKENS)
    decoder = load_decoder(tmp_path)
    assert all(window < len(TOKENS) / 2 for window in decoder.spec.windows)

    for chunk in (1, 13, 37):
        logits = decoder_logits(decoder, TOKENS, chunk)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("mistral", {"attention": "window"}),
        ("qwen2 with window", {"attention": "window"}),
        ("gemma3", {"attention": "window"}),
        ("gemma3", {"attention": "rope"}),
        ("llama3 rope", {"attention": "scaling"}),
        ("linear rope", {"attention": "scaling"}),
        ("yarn rope", {"attention": "scaling"}),
        ("gemma3", {"embedding_scale": 1.0}),
        ("gemma3", {"attention_scale": None}),
        ("gemma3", {"norm_weight_offset": 0.0}),
        ("gemma3", {"activation": Activation.SILU}),
        ("gemma3 with caps", {"attention_soft_cap": None}),
        ("gemma3 with caps", {"logit_soft_cap": None}),
    ],
    ids=str,
)
def test_every_feature_changes_the_logits(
    name: str, without: dict[str, Any], tmp_path: Path
) -> None:
    make_tiny_model(tmp_path, TINY_CONFIGS[name])
    spec = load_spec(tmp_path)
    changes = without
    if "attention" in without:
        plain = [strip(layer, without["attention"], spec.attention[-1]) for layer in spec.attention]
        changes = {"attention": tuple(plain)}

    logits = decoder_logits(load_decoder(tmp_path, replace(spec, **changes)), TOKENS, 37)

    expected = decoder_logits(load_decoder(tmp_path), TOKENS, 37)
    assert float((logits - expected).abs().max()) > 0.01


def strip(layer: AttentionSpec, feature: str, last: AttentionSpec) -> AttentionSpec:
    if feature == "window":
        return replace(layer, window=None)
    if feature == "scaling":
        return replace(layer, rope=RopeSpec(layer.rope.theta))
    return replace(layer, rope=last.rope)


@pytest.mark.parametrize("chunk", [1, 7, 8, 37])
def test_chunks_do_not_change_the_logits(tiny_pair: TinyPair, chunk: int) -> None:
    logits = decoder_logits(load_decoder(tiny_pair.folder), TOKENS, chunk)

    torch.testing.assert_close(logits, tiny_pair.logits(TOKENS), rtol=1e-4, atol=1e-4)


def test_sharded_checkpoint(tmp_path: Path) -> None:
    pair = TinyPair(tmp_path, make_tiny_llama(tmp_path, max_shard_size="60KB"))
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2

    logits = decoder_logits(load_decoder(tmp_path), TOKENS, chunk=37)

    torch.testing.assert_close(logits, pair.logits(TOKENS), rtol=1e-4, atol=1e-4)
