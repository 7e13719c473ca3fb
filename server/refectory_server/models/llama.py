"""The Llama family's config (Llama 2 and 3, SmolLM, SmolLM2) as a `DecoderSpec`.

Knows no other family and no tensors.
"""

from __future__ import annotations

from refectory_server.errors import StartupError
from refectory_server.models.config_reader import ConfigReader
from refectory_server.models.decoder_spec import Activation, DecoderSpec, RopeKind, RopeSpec

_DTYPES = ("float32", "bfloat16", "float16")
_DEFAULT_THETA = 10_000.0


def read_llama_spec(config: ConfigReader, architecture: str) -> DecoderSpec:
    """Raises `StartupError` for missing fields and for features that no executor computes."""
    config.absent("quantization_config")
    config.absent("num_local_experts")
    config.only("rope_interleaved", False)
    hidden_size = config.positive_int("hidden_size")
    num_heads = config.positive_int("num_attention_heads")
    num_kv_heads = config.positive_int("num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        raise StartupError(
            f"the model's config has num_attention_heads {num_heads}, not a multiple of "
            f"num_key_value_heads {num_kv_heads}",
            reason="ModelInvalid",
        )
    head_dim = config.positive_int("head_dim", default=max(hidden_size // num_heads, 1))
    if head_dim % 2:
        raise StartupError(
            f"the model's config has head_dim {head_dim}; allowed is an even number",
            reason="ModelInvalid",
        )
    attention_bias = config.boolean("attention_bias", default=False)
    return DecoderSpec(
        architecture=architecture,
        vocab_size=config.positive_int("vocab_size"),
        hidden_size=hidden_size,
        num_layers=config.positive_int("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.positive_int("intermediate_size"),
        norm_eps=config.positive_float("rms_norm_eps"),
        rope=_read_rope(config),
        max_position=config.positive_int("max_position_embeddings"),
        activation=Activation(config.choice("hidden_act", tuple(Activation), default="silu")),
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        mlp_bias=config.boolean("mlp_bias", default=False),
        tied_embeddings=config.boolean("tie_word_embeddings", default=False),
        checkpoint_dtype=_read_dtype(config),
    )


def _read_rope(config: ConfigReader) -> RopeSpec:
    """transformers 5 writes `rope_parameters`; older configs `rope_theta` and `rope_scaling`."""
    for group_name in ("rope_parameters", "rope_scaling"):
        group = config.group(group_name)
        group.choice("type", tuple(RopeKind), default=RopeKind.DEFAULT)
        group.choice("rope_type", tuple(RopeKind), default=RopeKind.DEFAULT)
        group.only("partial_rotary_factor", 1.0)
    config.only("partial_rotary_factor", 1.0)
    parameters = config.group("rope_parameters")
    source = parameters if parameters.has("rope_theta") else config
    return RopeSpec(theta=source.positive_float("rope_theta", default=_DEFAULT_THETA))


def _read_dtype(config: ConfigReader) -> str:
    field = "dtype" if config.has("dtype") else "torch_dtype"
    return config.choice(field, _DTYPES, default="float32")
