"""From config dicts to `DecoderSpec`, and every refusal with field and value."""

from __future__ import annotations

import math
from typing import Any

import pytest

from refectory_server.errors import StartupError
from refectory_server.models.decoder_spec import Activation, AttentionSpec, DecoderSpec
from refectory_server.models.registry import read_decoder_spec
from refectory_server.models.rope_spec import RopeSpec

SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 49152,
}


def refusal(config: dict[str, Any]) -> tuple[str, str]:
    with pytest.raises(StartupError) as caught:
        read_decoder_spec(config)
    return caught.value.reason, str(caught.value)


def test_smollm2() -> None:
    assert read_decoder_spec(SMOLLM2) == DecoderSpec(
        architecture="LlamaForCausalLM",
        vocab_size=49152,
        hidden_size=576,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        intermediate_size=1536,
        norm_eps=1e-5,
        attention=(AttentionSpec(RopeSpec(theta=100_000.0)),) * 30,
        max_position=8192,
        activation=Activation.SILU,
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        tied_embeddings=True,
        checkpoint_dtype="bfloat16",
    )


def test_old_config_without_optional_fields() -> None:
    required = (
        "architectures",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "rms_norm_eps",
        "vocab_size",
    )

    spec = read_decoder_spec({name: SMOLLM2[name] for name in required})

    assert spec.num_kv_heads == 9
    assert {layer.rope for layer in spec.attention} == {RopeSpec(theta=10_000.0)}
    assert not spec.tied_embeddings
    assert spec.checkpoint_dtype == "float32"


def test_newer_spelling_of_rope_and_dtype() -> None:
    config = {k: v for k, v in SMOLLM2.items() if k not in ("rope_theta", "torch_dtype")}
    rope = {"rope_theta": 5e5, "rope_type": "default"}

    spec = read_decoder_spec(config | {"rope_parameters": rope, "dtype": "float16"})

    assert {layer.rope for layer in spec.attention} == {RopeSpec(theta=500_000.0)}
    assert spec.checkpoint_dtype == "float16"


def test_own_head_dim_and_biases() -> None:
    spec = read_decoder_spec(SMOLLM2 | {"head_dim": 128, "attention_bias": True, "mlp_bias": True})

    assert (spec.q_size, spec.kv_size) == (1152, 384)
    assert spec.qkv_bias
    assert spec.o_bias
    assert spec.mlp_bias


def test_model_type_stands_in_for_architectures() -> None:
    config = {k: v for k, v in SMOLLM2.items() if k != "architectures"}

    assert read_decoder_spec(config).architecture == "LlamaForCausalLM"


def test_unknown_architecture() -> None:
    assert refusal({"architectures": ["FooForCausalLM"]}) == (
        "UnsupportedArchitecture",
        "the model's architecture FooForCausalLM is not supported; supported: "
        "Gemma3ForCausalLM, LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, "
        "Qwen3ForCausalLM",
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"rope_scaling": {"rope_type": "longrope", "factor": 8.0}},
            "rope_scaling.rope_type 'longrope', which is not supported yet; supported: default, ",
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "rope_scaling.type 'dynamic', which is not supported yet; supported: default, linear,",
        ),
        (
            {"rope_scaling": {"rope_type": "default", "type": "mrope"}},
            "rope_scaling.type 'mrope', which is not supported yet; supported: default",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "beta_fast": 32}},
            "rope_parameters.beta_fast 32, which has no meaning there; allowed: rope_type, type, "
            "rope_theta, partial_rotary_factor, factor",
        ),
        (
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear"}},
            "rope_scaling {'type': 'linear'}, which is not supported yet; supported: none",
        ),
        (
            {"original_max_position_embeddings": 4096},
            "original_max_position_embeddings 4096, which is not supported yet; supported: none",
        ),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "rope_parameters.partial_rotary_factor 0.5, which is not supported yet; supported: 1.0",
        ),
        (
            {"hidden_act": "gelu"},
            "hidden_act 'gelu', which is not supported yet; supported: silu, gelu_pytorch_tanh",
        ),
        ({"sliding_window": 4096}, "sliding_window 4096, which is not supported yet"),
        ({"layer_types": ["full_attention"]}, "layer_types ['full_attention'], which is not "),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            "quantization_config {'quant_method': 'gptq'}, which is not supported yet; "
            "supported: none",
        ),
        ({"num_local_experts": 8}, "num_local_experts 8, which is not supported yet"),
        ({"num_experts": 8}, "num_experts 8, which is not supported yet"),
        ({"torch_dtype": "int8"}, "torch_dtype 'int8', which is not supported yet; supported: "),
    ],
)
def test_features_not_computed_are_refused(fields: dict[str, Any], message: str) -> None:
    reason, text = refusal(SMOLLM2 | fields)

    assert reason == "UnsupportedModelFeature"
    assert text.startswith(f"the model's config has {message}")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": None}, "the model's config lacks hidden_size"),
        ({"vocab_size": 0}, "has vocab_size 0; allowed is an integer from 1"),
        ({"vocab_size": "many"}, "has vocab_size 'many'; allowed is an integer from 1"),
        ({"rms_norm_eps": -1}, "has rms_norm_eps -1; allowed is a number above 0"),
        ({"rms_norm_eps": math.inf}, "has rms_norm_eps inf; allowed is a number above 0"),
        ({"rms_norm_eps": 10**400}, "allowed is a number above 0"),
        (
            {"max_position_embeddings": 2**31},
            "has max_position_embeddings 2147483648; allowed is an integer from 1 to 2147483647",
        ),
        (
            {"num_hidden_layers": 10_001},
            "has num_hidden_layers 10001; allowed is an integer from 1 to 10000",
        ),
        ({"architectures": 5}, "has architectures 5; allowed is a list of names"),
        ({"architectures": [["x"]]}, "has architectures [['x']]; allowed is a list of names"),
        (
            {"architectures": {"LlamaForCausalLM": 1}},
            "has architectures {'LlamaForCausalLM': 1}; allowed is a list of names",
        ),
        ({"mlp_bias": "yes"}, "has mlp_bias 'yes'; allowed is true or false"),
        ({"rope_scaling": "linear"}, "has rope_scaling 'linear'; allowed is an object"),
        ({"head_dim": 63}, "has head_dim 63; allowed is an even number"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "lacks rope_scaling.low_freq_factor",
        ),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 4.0,
                    "high_freq_factor": 4.0,
                }
            },
            "has high_freq_factor 4.0; allowed is a number above its low_freq_factor 4.0",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 0}},
            "has rope_scaling.factor 0; allowed is a number above 0",
        ),
        (
            {"rope_scaling": {"type": "frequency_factors", "frequency_factors": [1.0, "x"]}},
            "rope_scaling.frequency_factors [1.0, 'x']; allowed is a list of numbers above 0",
        ),
        (
            {"rope_scaling": {"type": "frequency_factors", "frequency_factors": [1.0]}},
            "the model has 1 rope frequency factors; allowed is head_dim / 2, 32",
        ),
        (
            {"num_key_value_heads": 2},
            "has num_attention_heads 9, not a multiple of num_key_value_heads 2",
        ),
    ],
)
def test_malformed_fields_are_named(fields: dict[str, Any], message: str) -> None:
    reason, text = refusal(SMOLLM2 | fields)

    assert reason == "ModelInvalid"
    assert text.endswith(message)
