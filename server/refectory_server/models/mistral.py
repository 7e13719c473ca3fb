"""Mistral's config as a `DecoderSpec`: Llama's shape; all layers may share a sliding window."""

from __future__ import annotations

from refectory_server.models.base_spec import read_base_spec
from refectory_server.models.config_reader import ConfigReader
from refectory_server.models.decoder_spec import AttentionSpec, DecoderSpec
from refectory_server.models.rope_config import read_rope

_DEFAULT_WINDOW = 4096
"""transformers' value where the field is absent; null means no window."""


def read_mistral_spec(config: ConfigReader, architecture: str) -> DecoderSpec:
    """Raises `StartupError` (see `read_base_spec`)."""
    config.absent("layer_types")
    num_layers = config.positive_int("num_hidden_layers")
    window = config.nullable_positive_int("sliding_window", _DEFAULT_WINDOW)
    attention = AttentionSpec(read_rope(config), window)
    return read_base_spec(config, architecture, [attention] * num_layers)
