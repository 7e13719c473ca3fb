"""Published configs of every family as `DecoderSpec`, and refusals of what is not computed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from refectory_server.errors import StartupError
from refectory_server.models.decoder_spec import Activation, AttentionSpec, DecoderSpec
from refectory_server.models.registry import read_decoder_spec
from refectory_server.models.rope_spec import (
    LinearScaling,
    Llama3Scaling,
    RopeSpec,
    YarnScaling,
)

MISTRAL_7B: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 4,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
}
QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
GEMMA3_1B: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16",
    "vocab_size": 262144,
}
LLAMA_3_2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "head_dim": 64,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}


def windows(spec: DecoderSpec) -> list[int | None]:
    return [layer.window for layer in spec.attention]


def refusal(config: dict[str, Any]) -> tuple[str, str]:
    with pytest.raises(StartupError) as caught:
        read_decoder_spec(config)
    return caught.value.reason, str(caught.value)


def test_llama_3_2() -> None:
    spec = read_decoder_spec(LLAMA_3_2)

    rope = RopeSpec(500_000.0, Llama3Scaling(32.0, 1.0, 4.0, 8192))
    assert spec.attention == (AttentionSpec(rope),) * 16
    assert spec.max_position == 131072


def test_mistral_7b() -> None:
    assert read_decoder_spec(MISTRAL_7B) == DecoderSpec(
        architecture="MistralForCausalLM",
        vocab_size=32000,
        hidden_size=4096,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=14336,
        norm_eps=1e-5,
        attention=(AttentionSpec(RopeSpec(10_000.0), 4096),) * 4,
        max_position=32768,
        checkpoint_dtype="bfloat16",
    )


def test_mistral_without_window() -> None:
    """transformers takes 4096 where the field is absent, and no window where it is null."""
    absent = {name: value for name, value in MISTRAL_7B.items() if name != "sliding_window"}

    assert windows(read_decoder_spec(absent)) == [4096] * 4
    assert windows(read_decoder_spec(MISTRAL_7B | {"sliding_window": None})) == [None] * 4
    assert read_decoder_spec(MISTRAL_7B | {"sliding_window": None}).windows == ()


def test_qwen2() -> None:
    assert read_decoder_spec(QWEN2) == DecoderSpec(
        architecture="Qwen2ForCausalLM",
        vocab_size=151936,
        hidden_size=896,
        num_heads=14,
        num_kv_heads=2,
        head_dim=64,
        intermediate_size=4864,
        norm_eps=1e-6,
        attention=(AttentionSpec(RopeSpec(1e6)),) * 24,
        max_position=32768,
        qkv_bias=True,
        tied_embeddings=True,
        checkpoint_dtype="bfloat16",
    )


@pytest.mark.parametrize("config", [QWEN2, QWEN3], ids=["qwen2", "qwen3"])
def test_windows_of_qwen(config: dict[str, Any]) -> None:
    used = config | {
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "sliding_window": 100,
        "max_window_layers": 2,
    }
    types = ["sliding_attention", "full_attention", "full_attention"]

    assert windows(read_decoder_spec(used)) == [None, None, 100]
    assert windows(read_decoder_spec(used | {"max_window_layers": 0})) == [100] * 3
    assert windows(read_decoder_spec(used | {"max_window_layers": 28})) == [None] * 3
    assert windows(read_decoder_spec(used | {"layer_types": types})) == [100, None, None]
    assert windows(read_decoder_spec(used | {"sliding_window": None})) == [None] * 3
    assert windows(read_decoder_spec(used | {"use_sliding_window": False})) == [None] * 3


def test_qwen_with_yarn_as_its_documentation_switches_it_on() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}

    spec = read_decoder_spec(QWEN3 | {"rope_scaling": scaling})

    assert spec.max_position == 131072
    assert spec.attention[0].rope.scaling == YarnScaling(
        factor=4.0,
        original_max_position=32768,
        attention_factor=0.1 * math.log(4.0) + 1.0,
        beta_fast=32.0,
        beta_slow=1.0,
        truncate=True,
    )


def test_qwen3() -> None:
    assert read_decoder_spec(QWEN3) == DecoderSpec(
        architecture="Qwen3ForCausalLM",
        vocab_size=151936,
        hidden_size=1024,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=3072,
        norm_eps=1e-6,
        attention=(AttentionSpec(RopeSpec(1e6)),) * 28,
        max_position=40960,
        head_norms=True,
        tied_embeddings=True,
        checkpoint_dtype="bfloat16",
    )


def test_qwen3_with_biases() -> None:
    spec = read_decoder_spec(QWEN3 | {"attention_bias": True})

    assert (spec.qkv_bias, spec.o_bias) == (True, True)


def test_gemma3_1b() -> None:
    sliding = AttentionSpec(RopeSpec(10_000.0), 512)
    full = AttentionSpec(RopeSpec(1_000_000.0))
    assert read_decoder_spec(GEMMA3_1B) == DecoderSpec(
        architecture="Gemma3ForCausalLM",
        vocab_size=262144,
        hidden_size=1152,
        num_heads=4,
        num_kv_heads=1,
        head_dim=256,
        intermediate_size=6912,
        norm_eps=1e-6,
        attention=(*((sliding,) * 5 + (full,)) * 4, sliding, sliding),
        max_position=32768,
        activation=Activation.GELU_TANH,
        head_norms=True,
        output_norms=True,
        norm_weight_offset=1.0,
        embedding_scale=1152**0.5,
        attention_scale=0.0625,
        tied_embeddings=True,
        checkpoint_dtype="bfloat16",
    )


def test_gemma3_in_the_newer_spelling() -> None:
    old = {name: value for name, value in GEMMA3_1B.items() if "rope" not in name}
    new = old | {
        "layer_types": ["sliding_attention", "full_attention"] * 13,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
        },
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    }

    spec = read_decoder_spec(new)

    assert (
        spec.attention
        == (
            AttentionSpec(RopeSpec(5e3), 512),
            AttentionSpec(RopeSpec(5e5, LinearScaling(8.0))),
        )
        * 13
    )
    assert (spec.attention_soft_cap, spec.logit_soft_cap) == (50.0, 30.0)


def test_gemma3_scaling_of_older_configs_is_for_the_layers_that_see_everything() -> None:
    scaling = {"factor": 8.0, "rope_type": "linear"}

    spec = read_decoder_spec(GEMMA3_1B | {"rope_scaling": scaling})

    assert spec.attention[0].rope == RopeSpec(10_000.0)
    assert spec.attention[5].rope == RopeSpec(1_000_000.0, LinearScaling(8.0))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "mistral"}, "MistralForCausalLM"),
        ({"model_type": "qwen2"}, "Qwen2ForCausalLM"),
        ({"model_type": "qwen3"}, "Qwen3ForCausalLM"),
        ({"model_type": "gemma3_text"}, "Gemma3ForCausalLM"),
    ],
    ids=str,
)
def test_model_type_stands_in_for_architectures(config: dict[str, Any], expected: str) -> None:
    shape = {name: value for name, value in MISTRAL_7B.items() if name != "architectures"}

    assert read_decoder_spec(shape | config).architecture == expected


@pytest.mark.parametrize(
    ("config", "fields", "message"),
    [
        (
            MISTRAL_7B,
            {"layer_types": ["full_attention"] * 4},
            "layer_types ['full_attention', 'full_attention', 'full_attention', 'full_attention'], "
            "which is not supported yet; supported: none",
        ),
        (
            QWEN2,
            {"use_mrope": True},
            "use_mrope True, which is not supported yet; supported: False",
        ),
        (
            QWEN2,
            {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
            "rope_scaling.type 'mrope', which is not supported yet; supported: default, linear, ",
        ),
        (
            QWEN3,
            {"layer_types": ["linear_attention"] * 28},
            "layer_types 'linear_attention', which is not supported yet; "
            "supported: full_attention, sliding_attention",
        ),
        (
            GEMMA3_1B,
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention True, which is not supported yet; supported: False",
        ),
        (
            GEMMA3_1B,
            {"hidden_activation": "relu"},
            "hidden_activation 'relu', which is not supported yet; "
            "supported: silu, gelu_pytorch_tanh",
        ),
        (
            GEMMA3_1B,
            {"rope_parameters": {"rope_theta": 1e6}},
            "rope_parameters.rope_theta 1000000.0, which has no meaning there; "
            "allowed: full_attention, sliding_attention",
        ),
        (
            GEMMA3_1B,
            {"rope_parameters": {"sliding_attention": {"rope_type": "longrope"}}},
            "rope_parameters.sliding_attention.rope_type 'longrope', which is not supported yet",
        ),
    ],
)
def test_features_not_computed_are_refused(
    config: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    reason, text = refusal(config | fields)

    assert reason == "UnsupportedModelFeature"
    assert text.startswith(f"the model's config has {message}")


@pytest.mark.parametrize(
    ("config", "fields", "message"),
    [
        (MISTRAL_7B, {"sliding_window": 0}, "sliding_window 0; allowed is an integer from 1"),
        (QWEN2, {"max_window_layers": -1}, "max_window_layers -1; allowed is an integer from 0"),
        (QWEN2, {"use_sliding_window": 1}, "use_sliding_window 1; allowed is true or false"),
        (
            QWEN3,
            {"layer_types": ["sliding_attention"] * 28},
            "sliding_attention layers, but no sliding_window; allowed is an integer from 1",
        ),
        (
            QWEN3,
            {"layer_types": ["full_attention"]},
            "layer_types ['full_attention']; allowed is a list of 28 items",
        ),
        (
            GEMMA3_1B,
            {"sliding_window": None},
            "sliding_attention layers, but no sliding_window; allowed is an integer from 1",
        ),
        (
            GEMMA3_1B,
            {"query_pre_attn_scalar": 0},
            "query_pre_attn_scalar 0; allowed is a number above 0",
        ),
        (
            GEMMA3_1B,
            {"final_logit_softcapping": -30.0},
            "final_logit_softcapping -30.0; allowed is a number above 0",
        ),
        (
            GEMMA3_1B,
            {"sliding_window_pattern": 0},
            "sliding_window_pattern 0; allowed is an integer from 1",
        ),
    ],
)
def test_malformed_fields_are_named(
    config: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    reason, text = refusal(config | fields)

    assert reason == "ModelInvalid"
    assert text == f"the model's config has {message}"
