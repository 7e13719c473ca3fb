"""Gemma 3's text config as a `DecoderSpec`.

Most layers have a sliding window and a rope of their own; every few layers one sees everything.
"""

from __future__ import annotations

from dataclasses import replace

from refectory_server.models.base_spec import read_base_spec
from refectory_server.models.config_reader import ConfigReader
from refectory_server.models.decoder_spec import Activation, AttentionSpec, DecoderSpec
from refectory_server.models.layer_types import read_layer_windows
from refectory_server.models.rope_config import read_rope_group, refuse_foreign_rope_fields
from refectory_server.models.rope_spec import RopeSpec

_DEFAULT_HEAD_DIM = 256
_DEFAULT_ATTENTION_SCALAR = 256.0
_DEFAULT_WINDOW = 4096
_DEFAULT_PATTERN = 6
_DEFAULT_THETA = 1_000_000.0
_DEFAULT_WINDOW_THETA = 10_000.0


def read_gemma3_spec(config: ConfigReader, architecture: str) -> DecoderSpec:
    """Raises `StartupError` (see `read_base_spec`)."""
    config.only("use_bidirectional_attention", False)
    attention_bias = config.boolean("attention_bias", default=False)
    base = read_base_spec(
        config,
        architecture,
        _read_attention(config),
        activation_field="hidden_activation",
        default_activation=Activation.GELU_TANH,
        default_head_dim=_DEFAULT_HEAD_DIM,
        ties_embeddings=True,
    )
    scalar = config.positive_float("query_pre_attn_scalar", _DEFAULT_ATTENTION_SCALAR)
    return replace(
        base,
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        head_norms=True,
        output_norms=True,
        norm_weight_offset=1.0,
        embedding_scale=base.hidden_size**0.5,
        attention_scale=scalar**-0.5,
        attention_soft_cap=config.nullable_positive_float("attn_logit_softcapping"),
        logit_soft_cap=config.nullable_positive_float("final_logit_softcapping"),
    )


def _read_attention(config: ConfigReader) -> list[AttentionSpec]:
    num_layers = config.positive_int("num_hidden_layers")
    pattern = config.positive_int("sliding_window_pattern", _DEFAULT_PATTERN)
    are_sliding = [(layer + 1) % pattern != 0 for layer in range(num_layers)]
    window = config.nullable_positive_int("sliding_window", _DEFAULT_WINDOW)
    windows = read_layer_windows(config, are_sliding, window)
    full, sliding = _read_ropes(config)
    return [AttentionSpec(full if each is None else sliding, each) for each in windows]


def _read_ropes(config: ConfigReader) -> tuple[RopeSpec, RopeSpec]:
    """Of the layers that see everything, and of those with a window."""
    refuse_foreign_rope_fields(config)
    parameters = config.group("rope_parameters")
    parameters.known(("full_attention", "sliding_attention"))
    scaled = config.has("rope_scaling")
    full = config.group("rope_scaling") if scaled else parameters.group("full_attention")
    theta = config.positive_float("rope_theta", _DEFAULT_THETA)
    window_theta = config.positive_float("rope_local_base_freq", _DEFAULT_WINDOW_THETA)
    return (
        read_rope_group(full, config, theta),
        read_rope_group(parameters.group("sliding_attention"), config, window_theta),
    )
