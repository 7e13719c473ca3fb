"""The Llama family's config (Llama 2 and 3, SmolLM, SmolLM2) as a `DecoderSpec`."""

from __future__ import annotations

from dataclasses import replace

from refectory_server.models.base_spec import read_base_spec
from refectory_server.models.config_reader import ConfigReader
from refectory_server.models.decoder_spec import AttentionSpec, DecoderSpec
from refectory_server.models.rope_config import read_rope


def read_llama_spec(config: ConfigReader, architecture: str) -> DecoderSpec:
    """Raises `StartupError` (see `read_base_spec`)."""
    config.absent("sliding_window")
    config.absent("layer_types")
    num_layers = config.positive_int("num_hidden_layers")
    attention_bias = config.boolean("attention_bias", default=False)
    return replace(
        read_base_spec(config, architecture, [AttentionSpec(read_rope(config))] * num_layers),
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        mlp_bias=config.boolean("mlp_bias", default=False),
    )
