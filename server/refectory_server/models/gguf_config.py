"""The metadata of a GGUF file as a Hugging Face config.

Owns the translation of keys; `registry` gives the config its meaning. Knows no torch.
"""

from __future__ import annotations

from typing import Any

from refectory_server.errors import StartupError
from refectory_server.models.gguf_file import GgufFile
from refectory_server.models.rope_config import GIVEN_FACTORS

_GGML_FLOAT32 = 0
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
ROPE_FACTORS = "rope_freqs.weight"
_KNOWN_ROPE_KEYS = (
    "dimension_count",
    "freq_base",
    "scaling.type",
    "scaling.factor",
    "scaling.original_context_length",
    "scaling.finetuned",
)


def read_gguf_config(file: GgufFile) -> dict[str, Any]:
    """Raises `StartupError`: `UnsupportedArchitecture`, or `UnsupportedModelFeature` for keys
    that change the arithmetic in a way that no config spells."""
    kind = file.metadata.get("general.architecture")
    if kind not in _ARCHITECTURES:
        raise StartupError(
            f"{file.path} has the architecture {kind}; "
            f"supported in GGUF files: {', '.join(_ARCHITECTURES)}",
            reason="UnsupportedArchitecture",
        )
    _refuse_other_rope_keys(file, kind)

    def field(key: str) -> Any:
        return file.metadata.get(f"{kind}.{key}")

    if window := field("attention.sliding_window"):
        raise _unsupported(file, f"{kind}.attention.sliding_window", window, "none")
    head_dim = field("attention.key_length") or field("rope.dimension_count")
    config = {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": field("vocab_size") or _num_tokens(file),
        "hidden_size": field("embedding_length"),
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": field("attention.head_count"),
        "num_key_value_heads": field("attention.head_count_kv"),
        "head_dim": head_dim,
        "rms_norm_eps": field("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {
            "rope_theta": field("rope.freq_base"),
            **_rope_scaling(file, kind),
            **_partial_rotary(head_dim, field("rope.dimension_count")),
        },
        "max_position_embeddings": field("context_length"),
        "num_local_experts": field("expert_count"),
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "dtype": _dtype(file),
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _eos_token_ids(file),
    }
    return {key: value for key, value in config.items() if value is not None}


def _dtype(file: GgufFile) -> str:
    """What the weights are computed in: quantised ones have less than bfloat16's precision."""
    is_float32 = all(tensor.ggml_type == _GGML_FLOAT32 for tensor in file.tensors.values())
    return "float32" if is_float32 else "bfloat16"


def _rope_scaling(file: GgufFile, kind: str) -> dict[str, Any]:
    """GGUF has no name for Llama 3's scaling: its factors are a tensor.

    A factor without a type means linear.
    """
    factor = file.metadata.get(f"{kind}.rope.scaling.factor")
    scaling = file.metadata.get(f"{kind}.rope.scaling.type") or ("linear" if factor else "none")
    if ROPE_FACTORS in file.tensors:
        if scaling != "none":
            raise _unsupported(
                file, f"{kind}.rope.scaling.type", scaling, f"none beside {ROPE_FACTORS}"
            )
        factors = file.read_tensor(ROPE_FACTORS).tolist()
        return {"rope_type": GIVEN_FACTORS, GIVEN_FACTORS: factors}
    if scaling == "none":
        return {"rope_type": "default"}
    parameters = {"rope_type": scaling, "factor": factor}
    original = file.metadata.get(f"{kind}.rope.scaling.original_context_length")
    if scaling == "yarn" and original is not None:
        parameters["original_max_position_embeddings"] = original
    return parameters


def _partial_rotary(head_dim: int | None, num_rotated: int | None) -> dict[str, float]:
    if not head_dim or not num_rotated or head_dim == num_rotated:
        return {}
    return {"partial_rotary_factor": num_rotated / head_dim}


def _refuse_other_rope_keys(file: GgufFile, kind: str) -> None:
    prefix = f"{kind}.rope."
    for key, value in file.metadata.items():
        if key.startswith(prefix) and key.removeprefix(prefix) not in _KNOWN_ROPE_KEYS:
            raise _unsupported(file, key, value, ", ".join(prefix + k for k in _KNOWN_ROPE_KEYS))


def _num_tokens(file: GgufFile) -> int | None:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    return None if tokens is None else len(tokens)


def _eos_token_ids(file: GgufFile) -> list[int] | None:
    """End of text, of turn, of message: a chat model may end with any of them."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = [file.metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    return list(dict.fromkeys(token_id for token_id in ids if token_id is not None)) or None


def _unsupported(file: GgufFile, key: str, value: Any, supported: str) -> StartupError:
    return StartupError(
        f"{file.path} has {key} {value!r}, which is not supported yet; supported: {supported}",
        reason="UnsupportedModelFeature",
    )
