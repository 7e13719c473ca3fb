"""The structs of kernels/cpu/abi.h, field by field.

What the fields mean is said there. A pointer is an address; whoever fills it in keeps its array.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

import numpy as np
import numpy.typing as npt

_INT32 = ctypes.c_int32
_UINT64 = ctypes.c_uint64
_FLOAT = ctypes.c_float
_DOUBLE = ctypes.c_double
_POINTER = ctypes.c_void_p


class Element(IntEnum):
    BFLOAT16 = 0
    FLOAT32 = 1


class Activation(IntEnum):
    SILU = 0
    GELU_TANH = 1


class SampleStatus(IntEnum):
    SAMPLED = 0
    LOGITS_NOT_FINITE = 1
    NOTHING_LEFT = 2
    OUT_OF_MEMORY = 3


class DecoderConfigStruct(ctypes.Structure):
    _fields_ = (
        ("num_layers", _INT32),
        ("hidden_size", _INT32),
        ("num_heads", _INT32),
        ("num_kv_heads", _INT32),
        ("head_dim", _INT32),
        ("intermediate_size", _INT32),
        ("vocab_size", _INT32),
        ("activation", _INT32),
        ("element", _INT32),
        ("num_blocks", _INT32),
        ("block_size", _INT32),
        ("max_tokens", _INT32),
        ("num_positions", _INT32),
        ("num_threads", _INT32),
        ("cpus", _POINTER),
        ("norm_eps", _FLOAT),
        ("attention_scale", _FLOAT),
        ("attention_soft_cap", _FLOAT),
        ("logit_soft_cap", _FLOAT),
        ("embedding_scale", _FLOAT),
    )


class LayerWeightsStruct(ctypes.Structure):
    _fields_ = (
        ("q", _POINTER),
        ("k", _POINTER),
        ("v", _POINTER),
        ("o", _POINTER),
        ("gate", _POINTER),
        ("up", _POINTER),
        ("down", _POINTER),
        ("q_bias", _POINTER),
        ("k_bias", _POINTER),
        ("v_bias", _POINTER),
        ("o_bias", _POINTER),
        ("gate_bias", _POINTER),
        ("up_bias", _POINTER),
        ("down_bias", _POINTER),
        ("attention_norm", _POINTER),
        ("attention_output_norm", _POINTER),
        ("mlp_norm", _POINTER),
        ("mlp_output_norm", _POINTER),
        ("query_norm", _POINTER),
        ("key_norm", _POINTER),
        ("rotary_table", _INT32),
        ("window", _INT32),
    )


class SamplingRowStruct(ctypes.Structure):
    _fields_ = (
        ("temperature", _DOUBLE),
        ("top_p", _DOUBLE),
        ("min_p", _DOUBLE),
        ("presence_penalty", _DOUBLE),
        ("frequency_penalty", _DOUBLE),
        ("repetition_penalty", _DOUBLE),
        ("seed", _UINT64),
        ("position", _UINT64),
        ("top_k", _INT32),
        ("num_logprobs", _INT32),
        ("num_allowed", _INT32),
        ("num_forbidden", _INT32),
        ("num_biases", _INT32),
        ("num_counts", _INT32),
        ("allowed_ids", _POINTER),
        ("forbidden_ids", _POINTER),
        ("bias_ids", _POINTER),
        ("biases", _POINTER),
        ("count_ids", _POINTER),
        ("counts", _POINTER),
        ("top_ids", _POINTER),
        ("top_logprobs", _POINTER),
    )


class SampledTokenStruct(ctypes.Structure):
    _fields_ = (
        ("token_id", _INT32),
        ("status", _INT32),
        ("rank", _INT32),
        ("logprob", _DOUBLE),
    )


class StepStruct(ctypes.Structure):
    _fields_ = (
        ("num_tokens", _INT32),
        ("num_sequences", _INT32),
        ("num_sampled", _INT32),
        ("block_table_stride", _INT32),
        ("token_ids", _POINTER),
        ("query_starts", _POINTER),
        ("context_lens", _POINTER),
        ("block_tables", _POINTER),
        ("sampled", _POINTER),
        ("rows", _POINTER),
        ("tokens", _POINTER),
        ("logits", _POINTER),
    )


STRUCTS: tuple[type[ctypes.Structure], ...] = (
    DecoderConfigStruct,
    LayerWeightsStruct,
    SamplingRowStruct,
    SampledTokenStruct,
    StepStruct,
)
"""In the order of abi.h."""


def address(array: npt.NDArray[np.generic]) -> int:
    """Of its first element; the array must be contiguous and outlive the call."""
    if not array.flags.c_contiguous:
        raise ValueError(f"an array of strides {array.strides} is not contiguous")
    return array.ctypes.data
