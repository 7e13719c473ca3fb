"""A `DecoderSpec` and its weights as a program of the native library.

Owns the translation: names, types, what is folded into what. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from refectory_kernels.cpu_abi import Activation as NativeActivation
from refectory_kernels.cpu_abi import Element
from refectory_kernels.cpu_decoder import CpuDecoder, DecoderShape, Weights
from refectory_kernels.cpu_level import CpuLevel
from refectory_server.models.decoder_spec import Activation, DecoderSpec
from refectory_server.models.rope import rope_tables
from refectory_server.models.tensor_shapes import (
    EMBEDDING,
    FINAL_NORM,
    KEY_NORM,
    LM_HEAD,
    QUERY_NORM,
    layer_norms,
    layer_prefix,
)
from refectory_server.models.weights import WeightTable

_ACTIVATIONS = {
    Activation.SILU: NativeActivation.SILU,
    Activation.GELU_TANH: NativeActivation.GELU_TANH,
}
_ELEMENTS = {torch.bfloat16: Element.BFLOAT16, torch.float32: Element.FLOAT32}
_MATRICES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def build_native_decoder(
    spec: DecoderSpec,
    weights: WeightTable,
    *,
    num_blocks: int,
    block_size: int,
    max_model_len: int,
    max_tokens: int,
    level: CpuLevel,
    cpus: Sequence[int | None],
) -> CpuDecoder:
    """Takes the tensors out of `weights` layer by layer, so that no copy of all is held.

    weights: bfloat16 or float32, all of one type
    num_blocks, block_size: of the KV cache; max_tokens: of one step
    cpus: one entry a thread, the processor it is bound to, or None
    """
    dtype = weights[EMBEDDING].dtype
    shape = _shape(spec, dtype, num_blocks, block_size, max_model_len, max_tokens)
    decoder = CpuDecoder(level, shape, cpus)
    ropes = list(dict.fromkeys(attention.rope for attention in spec.attention))
    for rope in ropes:
        cos, sin = rope_tables(rope, max_model_len, spec.head_dim)
        decoder.add_rotary_table(cos.numpy(), sin.numpy())
    for layer, attention in enumerate(spec.attention):
        prefix = layer_prefix(layer)
        matrices = {
            name: _bits(weights.pop(f"{prefix}{hf_name}.weight"))
            for name, hf_name in _MATRICES.items()
        }
        decoder.add_layer(
            matrices,
            _norms(spec, weights, prefix) | _biases(weights, prefix),
            rotary_table=ropes.index(attention.rope),
            window=attention.window,
        )
    decoder.set_ends(
        _bits(weights.pop(EMBEDDING)),
        None if spec.tied_embeddings else _bits(weights.pop(LM_HEAD)),
        _floats(weights.pop(FINAL_NORM)) + np.float32(spec.norm_weight_offset),
    )
    return decoder


def _shape(
    spec: DecoderSpec,
    dtype: torch.dtype,
    num_blocks: int,
    block_size: int,
    max_model_len: int,
    max_tokens: int,
) -> DecoderShape:
    return DecoderShape(
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        intermediate_size=spec.intermediate_size,
        vocab_size=spec.vocab_size,
        activation=_ACTIVATIONS[spec.activation],
        element=_ELEMENTS[dtype],
        num_blocks=num_blocks,
        block_size=block_size,
        max_tokens=max_tokens,
        num_positions=max_model_len,
        norm_eps=spec.norm_eps,
        attention_scale=(
            spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
        ),
        attention_soft_cap=spec.attention_soft_cap or 0.0,
        logit_soft_cap=spec.logit_soft_cap or 0.0,
        embedding_scale=float(torch.tensor(spec.embedding_scale, dtype=dtype)),
    )


def _norms(
    spec: DecoderSpec, weights: WeightTable, prefix: str
) -> dict[str, npt.NDArray[np.float32]]:
    names = layer_norms(spec)
    hf_names = {
        "attention_norm": names.attention,
        "attention_output_norm": names.attention_output,
        "mlp_norm": names.mlp,
        "mlp_output_norm": names.mlp_output,
        "query_norm": QUERY_NORM if spec.head_norms else None,
        "key_norm": KEY_NORM if spec.head_norms else None,
    }
    offset = np.float32(spec.norm_weight_offset)
    return {
        name: _floats(weights.pop(f"{prefix}{hf_name}")) + offset
        for name, hf_name in hf_names.items()
        if hf_name is not None
    }


def _biases(weights: WeightTable, prefix: str) -> dict[str, npt.NDArray[np.float32]]:
    found = {
        name: weights.pop(f"{prefix}{hf_name}.bias", None) for name, hf_name in _MATRICES.items()
    }
    return {f"{name}_bias": _floats(bias) for name, bias in found.items() if bias is not None}


def _bits(tensor: torch.Tensor) -> Weights:
    tensor = tensor.contiguous()
    array: Weights = (
        tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
    ).numpy()
    return array


def _floats(tensor: torch.Tensor) -> npt.NDArray[np.float32]:
    array: npt.NDArray[np.float32] = tensor.float().contiguous().numpy()
    return array
