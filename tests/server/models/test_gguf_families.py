"""GGUF files of every supported architecture give transformers' logits; others are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from refectory_server.errors import StartupError
from refectory_server.models.decoder_spec import DecoderSpec
from refectory_server.models.hf_config import read_hf_config
from refectory_server.models.model_check import check_model
from refectory_server.models.registry import read_decoder_spec
from refectory_server.models.rope_spec import LinearScaling, RopeSpec, YarnScaling
from refectory_server.models.source import ModelFiles
from refectory_server.models.torch_decoder import TorchDecoder
from refectory_server.models.weights import load_weights
from refectory_server.testing.decoder_logits import decoder_logits
from refectory_server.testing.tiny_gguf import write_tiny_gguf
from refectory_server.testing.tiny_llama import TinyPair
from refectory_server.testing.tiny_models import TINY_CONFIGS, make_tiny_model

TOKENS = [(11 * i * i + 5 * i + 1) % 131 for i in range(37)]


def read_spec(path: Path) -> DecoderSpec:
    return read_decoder_spec(read_hf_config(ModelFiles(path, "tiny")))


@pytest.mark.parametrize("name", ["llama", "llama3 rope", "linear rope", "qwen2", "qwen3"])
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    pair = TinyPair(tmp_path, make_tiny_model(tmp_path, TINY_CONFIGS[name]))
    path = tmp_path / "tiny.gguf"
    keys: dict[str, float | str] = {}
    if name == "linear rope":
        keys = {"rope__scaling__type": "linear", "rope__scaling__factor": 3.0}
    write_tiny_gguf(path, pair.reference, **keys)
    files = ModelFiles(path, "tiny")
    spec = read_spec(path)
    weights = load_weights(files, spec, torch.float32, lambda phase, progress: None)

    logits = decoder_logits(TorchDecoder(spec, weights, spec.max_position), TOKENS, chunk=13)

    torch.testing.assert_close(logits, pair.logits(TOKENS), rtol=1e-4, atol=1e-4)
    assert check_model(files).spec == spec


def test_a_factor_without_a_type_is_linear(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    model = make_tiny_model(tmp_path, TINY_CONFIGS["qwen2"])
    write_tiny_gguf(path, model, rope__scaling__factor=2.0)

    assert read_spec(path).attention[0].rope == RopeSpec(10_000.0, LinearScaling(2.0))


def test_factors_beside_another_scaling_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    model = make_tiny_model(tmp_path, TINY_CONFIGS["llama3 rope"])
    write_tiny_gguf(path, model, rope__scaling__factor=2.0)

    with pytest.raises(StartupError, match="'linear', which is not supported yet; supported: none"):
        read_spec(path)


def test_yarn(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    model = make_tiny_model(tmp_path, TINY_CONFIGS["qwen3"])
    write_tiny_gguf(path, model, rope__scaling__type="yarn", rope__scaling__factor=4.0)

    scaling = read_spec(path).attention[0].rope.scaling

    assert isinstance(scaling, YarnScaling)
    assert (scaling.factor, scaling.original_max_position) == (4.0, 256)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"rope__scaling__type": "longrope"},
            "rope_parameters.rope_type 'longrope', which is not supported yet; supported: default",
        ),
        (
            {"rope__scaling__attn_factor": 0.5},
            "qwen2.rope.scaling.attn_factor 0.5, which is not supported yet; supported: "
            "qwen2.rope.dimension_count, qwen2.rope.freq_base, ",
        ),
        (
            {"attention__sliding_window": 32.0},
            "qwen2.attention.sliding_window 32.0, which is not supported yet; supported: none",
        ),
        (
            {"rope__dimension_count": 4.0, "attention__key_length": 8.0},
            "rope_parameters.partial_rotary_factor 0.5, which is not supported yet; supported: 1.0",
        ),
    ],
    ids=str,
)
def test_keys_not_computed_are_refused(
    keys: dict[str, float | str], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, make_tiny_model(tmp_path, TINY_CONFIGS["qwen2"]), **keys)

    with pytest.raises(StartupError) as caught:
        read_spec(path)
    assert caught.value.reason == "UnsupportedModelFeature"
    assert f" has {message}" in str(caught.value)
