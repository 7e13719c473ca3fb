"""The tensors a `DecoderSpec` needs: Hugging Face names and shapes. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass

from refectory_server.models.decoder_spec import DecoderSpec

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"
QUERY_NORM = "self_attn.q_norm.weight"
KEY_NORM = "self_attn.k_norm.weight"


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """Where a layer's norms are in the checkpoint; the same name means another norm in models
    that norm the outputs too."""

    attention: str
    mlp: str
    attention_output: str | None
    mlp_output: str | None


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def layer_norms(spec: DecoderSpec) -> LayerNorms:
    if spec.output_norms:
        return LayerNorms(
            attention="input_layernorm.weight",
            attention_output="post_attention_layernorm.weight",
            mlp="pre_feedforward_layernorm.weight",
            mlp_output="post_feedforward_layernorm.weight",
        )
    return LayerNorms(
        attention="input_layernorm.weight",
        mlp="post_attention_layernorm.weight",
        attention_output=None,
        mlp_output=None,
    )


def expected_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Name to shape of every tensor; matrices are [out_features, in_features]."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    linears = {
        "self_attn.q_proj": (spec.q_size, hidden, spec.qkv_bias),
        "self_attn.k_proj": (spec.kv_size, hidden, spec.qkv_bias),
        "self_attn.v_proj": (spec.kv_size, hidden, spec.qkv_bias),
        "self_attn.o_proj": (hidden, spec.q_size, spec.o_bias),
        "mlp.gate_proj": (inner, hidden, spec.mlp_bias),
        "mlp.up_proj": (inner, hidden, spec.mlp_bias),
        "mlp.down_proj": (hidden, inner, spec.mlp_bias),
    }
    names = layer_norms(spec)
    norms = {
        name: (hidden,)
        for name in (names.attention, names.mlp, names.attention_output, names.mlp_output)
        if name is not None
    }
    if spec.head_norms:
        norms |= {QUERY_NORM: (spec.head_dim,), KEY_NORM: (spec.head_dim,)}
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (spec.vocab_size, hidden)}
    for layer in range(spec.num_layers):
        prefix = layer_prefix(layer)
        shapes |= {f"{prefix}{name}": shape for name, shape in norms.items()}
        for name, (rows, columns, has_bias) in linears.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
    shapes[FINAL_NORM] = (hidden,)
    if not spec.tied_embeddings:
        shapes[LM_HEAD] = (spec.vocab_size, hidden)
    return shapes
