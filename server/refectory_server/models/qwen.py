"""The configs of Qwen2 (with 2.5) and Qwen3 as a `DecoderSpec`.

Both may give the layers from `max_window_layers` on a sliding window. Qwen2 has biases at q, k
and v; Qwen3 norms each head's query and key, and its head_dim is independent of hidden_size.
"""

from __future__ import annotations

from dataclasses import replace

from refectory_server.models.base_spec import read_base_spec
from refectory_server.models.config_reader import ConfigReader
from refectory_server.models.decoder_spec import AttentionSpec, DecoderSpec
from refectory_server.models.layer_types import read_layer_windows
from refectory_server.models.rope_config import read_rope

_DEFAULT_WINDOW = 4096
_DEFAULT_MAX_WINDOW_LAYERS = 28
_QWEN3_HEAD_DIM = 128


def read_qwen2_spec(config: ConfigReader, architecture: str) -> DecoderSpec:
    """Raises `StartupError` (see `read_base_spec`)."""
    return replace(
        read_base_spec(config, architecture, _read_attention(config)),
        qkv_bias=True,
    )


def read_qwen3_spec(config: ConfigReader, architecture: str) -> DecoderSpec:
    """Raises `StartupError` (see `read_base_spec`)."""
    attention_bias = config.boolean("attention_bias", default=False)
    return replace(
        read_base_spec(
            config, architecture, _read_attention(config), default_head_dim=_QWEN3_HEAD_DIM
        ),
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        head_norms=True,
    )


def _read_attention(config: ConfigReader) -> list[AttentionSpec]:
    """`sliding_window` counts only where `use_sliding_window` is true."""
    config.only("use_mrope", False)
    num_layers = config.positive_int("num_hidden_layers")
    window = None
    if config.boolean("use_sliding_window", default=False):
        window = config.nullable_positive_int("sliding_window", _DEFAULT_WINDOW)
    first = config.int_from(0, "max_window_layers", _DEFAULT_MAX_WINDOW_LAYERS)
    are_sliding = [window is not None and layer >= first for layer in range(num_layers)]
    rope = read_rope(config)
    return [AttentionSpec(rope, each) for each in read_layer_windows(config, are_sliding, window)]
