"""Writes one of transformers' tiny models as a GGUF file, in float32, as llama.cpp lays it out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch


def write_tiny_gguf(path: Path, model: Any, **keys: float | str) -> None:
    """`keys`: more keys of the architecture, with "__" for a dot: rope__scaling__factor=2.0."""
    config = model.config
    kind = config.model_type
    writer = gguf.GGUFWriter(path, kind)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
    for key, value in keys.items():
        name = f"{kind}.{key.replace('__', '.')}"
        if isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_float32(name, value)
    _add_tensors(writer, model)
    if config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensors(writer: gguf.GGUFWriter, model: Any) -> None:
    config = model.config
    architectures = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(architectures[config.model_type], config.num_hidden_layers)
    tensors: Mapping[str, torch.Tensor] = model.state_dict()
    for name, tensor in tensors.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values: npt.NDArray[np.float32] = tensor.float().numpy()
        if config.model_type == "llama" and ".q_proj." in name:
            values = _pairs_from_halves(values, config.num_attention_heads)
        if config.model_type == "llama" and ".k_proj." in name:
            values = _pairs_from_halves(values, config.num_key_value_heads)
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, name
        writer.add_tensor(gguf_name, values)


def _pairs_from_halves(values: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """llama files keep the two rows that are rotated against each other side by side."""
    halves = values.reshape(num_heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _llama3_factors(config: Any) -> npt.NDArray[np.float32]:
    """By what each frequency is divided, from the definition of the scaling."""
    rope = config.rope_parameters
    factors = []
    for i in range(config.head_dim // 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (2 * i / config.head_dim)
        turns = rope["original_max_position_embeddings"] / wavelength
        if turns > rope["high_freq_factor"]:
            factors.append(1.0)
        elif turns < rope["low_freq_factor"]:
            factors.append(rope["factor"])
        else:
            span = rope["high_freq_factor"] - rope["low_freq_factor"]
            kept = (turns - rope["low_freq_factor"]) / span
            factors.append(1 / ((1 - kept) / rope["factor"] + kept))
    return np.array(factors, np.float32)
