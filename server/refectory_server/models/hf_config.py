"""The model's Hugging Face config as a dict, from config.json or from GGUF metadata.

Owns the translation of GGUF keys; `registry` gives the dict its meaning. Knows no torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from refectory_server.errors import StartupError
from refectory_server.models.gguf_file import GgufFile
from refectory_server.models.source import ModelFiles

GENERATION_CONFIG = "generation_config.json"
_GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM"}
_GGUF_ROPE_FACTORS = "rope_freqs.weight"


def read_hf_config(files: ModelFiles, gguf: GgufFile | None = None) -> dict[str, Any]:
    """The config of `files`; `gguf` is its opened file where it is already at hand.

    Raises `StartupError` with reason `ModelInvalid` or `UnsupportedArchitecture`.
    """
    if files.is_gguf:
        return _from_gguf(gguf or GgufFile(files.path))
    return read_json_object(files.path / "config.json")


def read_eos_token_ids(files: ModelFiles, hf_config: dict[str, Any]) -> tuple[int, ...]:
    """The model's end tokens: generation_config.json's where it names any, else the config's."""
    path = files.path / GENERATION_CONFIG
    sources = [hf_config]
    if not files.is_gguf and path.is_file():
        sources.insert(0, read_json_object(path))
    for source in sources:
        value = source.get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(map(_is_token_id, ids)):
            raise StartupError(
                f"eos_token_id of {files.name} is {value}; allowed is a token id or a list of them",
                reason="ModelInvalid",
            )
        return tuple(dict.fromkeys(ids))
    return ()


def _is_token_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def read_json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StartupError(f"cannot read {path}: {error}", reason="ModelInvalid") from error
    if not isinstance(value, dict):
        raise StartupError(f"{path} holds no JSON object", reason="ModelInvalid")
    return value


def _from_gguf(file: GgufFile) -> dict[str, Any]:
    kind = file.metadata.get("general.architecture")
    if kind not in _GGUF_ARCHITECTURES:
        raise StartupError(
            f"{file.path} has the architecture {kind}; "
            f"supported in GGUF files: {', '.join(_GGUF_ARCHITECTURES)}",
            reason="UnsupportedArchitecture",
        )

    def field(key: str) -> Any:
        return file.metadata.get(f"{kind}.{key}")

    # GGUF has no rope kind for Llama 3's scaling: its factors are a tensor.
    rope_type = field("rope.scaling.type") or "default"
    if _GGUF_ROPE_FACTORS in file.tensors:
        rope_type = "llama3"
    config = {
        "architectures": [_GGUF_ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": field("vocab_size") or _num_tokens(file),
        "hidden_size": field("embedding_length"),
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": field("attention.head_count"),
        "num_key_value_heads": field("attention.head_count_kv"),
        "head_dim": field("attention.key_length") or field("rope.dimension_count"),
        "rms_norm_eps": field("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {
            "rope_type": "default" if rope_type == "none" else rope_type,
            "rope_theta": field("rope.freq_base"),
        },
        "max_position_embeddings": field("context_length"),
        "num_local_experts": field("expert_count"),
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "dtype": "float32",
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _eos_token_ids(file),
    }
    return {key: value for key, value in config.items() if value is not None}


def _num_tokens(file: GgufFile) -> int | None:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    return None if tokens is None else len(tokens)


def _eos_token_ids(file: GgufFile) -> list[int] | None:
    """End of text, of turn, of message: a chat model may end with any of them."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = [file.metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    return list(dict.fromkeys(token_id for token_id in ids if token_id is not None)) or None
