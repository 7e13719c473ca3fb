"""What the configs of all families have in common, as a `DecoderSpec` to start from.

A family's reader adds its own features. Knows no family and no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from refectory_server.errors import StartupError
from refectory_server.models.config_reader import ConfigReader
from refectory_server.models.decoder_spec import Activation, AttentionSpec, DecoderSpec
from refectory_server.models.rope_spec import GivenScaling, YarnScaling

_DTYPES = ("float32", "bfloat16", "float16")


def read_base_spec(
    config: ConfigReader,
    architecture: str,
    attention: Sequence[AttentionSpec],
    *,
    activation_field: str = "hidden_act",
    default_activation: Activation = Activation.SILU,
    default_head_dim: int | None = None,
    ties_embeddings: bool = False,
) -> DecoderSpec:
    """attention: one a layer.

    default_head_dim: None is hidden_size / num_attention_heads
    ties_embeddings: where the config does not say
    Raises `StartupError` for missing fields and for features that no executor computes.
    """
    config.absent("quantization_config")
    config.absent("num_local_experts")
    config.absent("num_experts")
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
    head_dim = config.positive_int(
        "head_dim", default=default_head_dim or max(hidden_size // num_heads, 1)
    )
    _check_head_dim(head_dim, attention)
    return DecoderSpec(
        architecture=architecture,
        vocab_size=config.positive_int("vocab_size"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.positive_int("intermediate_size"),
        norm_eps=config.positive_float("rms_norm_eps"),
        attention=tuple(attention),
        max_position=_max_position(config, attention),
        activation=Activation(
            config.choice(activation_field, tuple(Activation), default=default_activation)
        ),
        tied_embeddings=config.boolean("tie_word_embeddings", default=ties_embeddings),
        checkpoint_dtype=config.choice(
            "dtype" if config.has("dtype") else "torch_dtype", _DTYPES, default="float32"
        ),
    )


def _check_head_dim(head_dim: int, attention: Sequence[AttentionSpec]) -> None:
    if head_dim % 2:
        raise StartupError(
            f"the model's config has head_dim {head_dim}; allowed is an even number",
            reason="ModelInvalid",
        )
    for layer in attention:
        scaling = layer.rope.scaling
        if isinstance(scaling, GivenScaling) and len(scaling.factors) != head_dim // 2:
            raise StartupError(
                f"the model has {len(scaling.factors)} rope frequency factors; "
                f"allowed is head_dim / 2, {head_dim // 2}",
                reason="ModelInvalid",
            )


def _max_position(config: ConfigReader, attention: Sequence[AttentionSpec]) -> int:
    """YaRN is switched on by hand, in a config whose max_position_embeddings stays as it was."""
    extended = [
        int(layer.rope.scaling.factor * layer.rope.scaling.original_max_position)
        for layer in attention
        if isinstance(layer.rope.scaling, YarnScaling)
    ]
    return max(config.positive_int("max_position_embeddings"), *extended, 0)
