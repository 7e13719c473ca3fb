"""The rules of a decoder once more: one sequence at once, in float64, without blocks or tiles.

What the native library is compared with. Shares nothing with it but the weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from refectory_kernels.cpu_abi import Activation
from refectory_server.testing.random_decoder import (
    RandomDecoder,
    RandomLayer,
    to_element,
    to_float,
)

Doubles = npt.NDArray[np.float64]


def plain_logits(model: RandomDecoder, token_ids: Sequence[int]) -> Doubles:
    """Logits after every token: [num_tokens, vocab_size].

    Keys and values are rounded as the cache rounds them; everything else is float64.
    """
    shape = model.shape
    embedding = _doubles(model.embedding)
    residual = embedding[list(token_ids)] * shape.embedding_scale
    for layer in model.layers:
        normed = _rms_norm(residual, layer.vectors["attention_norm"], shape.norm_eps)
        update = _linear(layer, "o", _attend(model, layer, normed))
        residual = residual + _output_norm(model, layer, "attention_output_norm", update)
        normed = _rms_norm(residual, layer.vectors["mlp_norm"], shape.norm_eps)
        gate = _activate(_linear(layer, "gate", normed), shape.activation)
        update = _linear(layer, "down", gate * _linear(layer, "up", normed))
        residual = residual + _output_norm(model, layer, "mlp_output_norm", update)
    lm_head = embedding if model.lm_head is None else _doubles(model.lm_head)
    logits: Doubles = _rms_norm(residual, model.final_norm, shape.norm_eps) @ lm_head.T
    return _cap(logits, shape.logit_soft_cap)


def _attend(model: RandomDecoder, layer: RandomLayer, normed: Doubles) -> Doubles:
    shape = model.shape
    num_tokens = len(normed)
    query, key, value = (
        _linear(layer, name, normed).reshape(num_tokens, -1, shape.head_dim) for name in "qkv"
    )
    if "query_norm" in layer.vectors:
        query = _rms_norm(query, layer.vectors["query_norm"], shape.norm_eps)
        key = _rms_norm(key, layer.vectors["key_norm"], shape.norm_eps)
    cos, sin = (_doubles(table)[:num_tokens, None] for table in _rotary_table(model, layer))
    query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
    group_size = shape.num_heads // shape.num_kv_heads
    query = query.swapaxes(0, 1)  # [num_heads, num_tokens, head_dim], as the others here
    key, value = (
        _doubles(to_element(cached.astype(np.float32), shape.element))
        .repeat(group_size, axis=1)
        .swapaxes(0, 1)
        for cached in (key, value)
    )
    scores = _cap(query @ key.swapaxes(1, 2) * shape.attention_scale, shape.attention_soft_cap)
    distance = np.subtract.outer(np.arange(num_tokens), np.arange(num_tokens))
    scores[:, (distance < 0) | (distance >= (layer.window or num_tokens))] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    attended: Doubles = (weights @ value).swapaxes(0, 1).reshape(num_tokens, -1)
    return attended


def _rotary_table(
    model: RandomDecoder, layer: RandomLayer
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    return model.rotary_tables[layer.rotary_table]


def _rotate(heads: Doubles, cos: Doubles, sin: Doubles) -> Doubles:
    first, second = np.split(heads, 2, axis=2)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=2)


def _linear(layer: RandomLayer, name: str, rows: Doubles) -> Doubles:
    product: Doubles = rows @ _doubles(layer.matrices[name]).T
    return product + layer.vectors.get(f"{name}_bias", 0.0)


def _output_norm(model: RandomDecoder, layer: RandomLayer, name: str, update: Doubles) -> Doubles:
    if name not in layer.vectors:
        return update
    return _rms_norm(update, layer.vectors[name], model.shape.norm_eps)


def _rms_norm(rows: Doubles, weight: npt.NDArray[np.float32], eps: float) -> Doubles:
    normed: Doubles = rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + eps) * weight
    return normed


def _activate(gate: Doubles, activation: Activation) -> Doubles:
    inner = gate / 2 if activation is Activation.SILU else _gelu_inner(gate)
    # The sigmoid of SiLU by tanh: it cannot overflow.
    activated: Doubles = gate * (1 + np.tanh(inner)) / 2
    return activated


def _gelu_inner(gate: Doubles) -> Doubles:
    inner: Doubles = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
    return inner


def _cap(values: Doubles, cap: float) -> Doubles:
    return values if cap == 0 else cap * np.tanh(values / cap)


def _doubles(weights: npt.NDArray[np.uint16] | npt.NDArray[np.float32]) -> Doubles:
    return to_float(weights).astype(np.float64)
