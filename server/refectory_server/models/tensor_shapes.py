"""The tensors a `DecoderSpec` needs: Hugging Face names and shapes. Knows no torch."""

from __future__ import annotations

from refectory_server.models.decoder_spec import DecoderSpec

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


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
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (spec.vocab_size, hidden)}
    for layer in range(spec.num_layers):
        prefix = layer_prefix(layer)
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
        for name, (rows, columns, has_bias) in linears.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
    shapes[FINAL_NORM] = (hidden,)
    if not spec.tied_embeddings:
        shapes[LM_HEAD] = (spec.vocab_size, hidden)
    return shapes
