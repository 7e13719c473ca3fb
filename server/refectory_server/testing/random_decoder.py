"""`RandomDecoder`: weights of any shape drawn from a seed, for `CpuDecoder` and whoever checks it.

Knows neither torch nor checkpoints nor families: only what a decoder may have.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from refectory_kernels.cpu_abi import Activation, Element
from refectory_kernels.cpu_decoder import CpuDecoder, DecoderShape, Weights
from refectory_kernels.cpu_level import CpuLevel

Floats = npt.NDArray[np.float32]

TINY: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 48,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 16,
    "intermediate_size": 80,
    "vocab_size": 131,
    "activation": Activation.SILU,
    "element": Element.FLOAT32,
    "num_blocks": 64,
    "block_size": 16,
    "max_tokens": 2048,
    "num_positions": 1024,
    "norm_eps": 1e-5,
    "attention_scale": 0.25,
    "attention_soft_cap": 0.0,
    "logit_soft_cap": 0.0,
    "embedding_scale": 1.0,
}
"""Of a `DecoderShape`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a family may have or lack."""

    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False
    output_norms: bool = False
    is_tied: bool = False
    windows: tuple[int | None, ...] = (None,)
    """Of the layers in turn, from the first again after the last."""
    has_nan_token: bool = False
    """The last token's embedding is NaN."""


@dataclass(frozen=True, slots=True)
class RandomLayer:
    """The arguments of `CpuDecoder.add_layer`."""

    matrices: Mapping[str, Weights]
    vectors: Mapping[str, Floats]
    rotary_table: int
    window: int | None


@dataclass(frozen=True, slots=True)
class RandomDecoder:
    """Two rotary tables; layers use them in turn."""

    shape: DecoderShape
    parts: Parts
    seed: int
    rotary_tables: list[tuple[Floats, Floats]] = field(init=False, repr=False)
    layers: list[RandomLayer] = field(init=False, repr=False)
    embedding: Weights = field(init=False, repr=False)
    lm_head: Weights | None = field(init=False, repr=False)
    final_norm: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        shape = self.shape
        embedding = _uniform(rng, shape.vocab_size, shape.hidden_size)
        if self.parts.has_nan_token:
            embedding[-1] = np.nan
        values = {
            "rotary_tables": [_rotary_table(shape, theta) for theta in (1e4, 300.0)],
            "layers": [_draw_layer(rng, shape, self.parts, i) for i in range(shape.num_layers)],
            "embedding": to_element(embedding, shape.element),
            "lm_head": None
            if self.parts.is_tied
            else to_element(_uniform(rng, *embedding.shape), shape.element),
            "final_norm": 1 + _uniform(rng, shape.hidden_size),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def nan_token(self) -> int | None:
        return self.shape.vocab_size - 1 if self.parts.has_nan_token else None

    def load(self, level: CpuLevel, num_threads: int = 1) -> CpuDecoder:
        decoder = CpuDecoder(level, self.shape, [None] * num_threads)
        for cos, sin in self.rotary_tables:
            decoder.add_rotary_table(cos, sin)
        for layer in self.layers:
            decoder.add_layer(
                layer.matrices,
                layer.vectors,
                rotary_table=layer.rotary_table,
                window=layer.window,
            )
        decoder.set_ends(self.embedding, self.lm_head, self.final_norm)
        return decoder


def make_decoder(seed: int = 0, parts: Parts | None = None, **overrides: Any) -> RandomDecoder:
    """overrides: of `TINY`; attention_scale follows head_dim unless it is given."""
    head_dim = overrides.get("head_dim", TINY["head_dim"])
    shape = DecoderShape(**{**TINY, "attention_scale": head_dim**-0.5, **overrides})
    return RandomDecoder(shape, parts or Parts(), seed)


def draw_decoder(rng: random.Random, **overrides: Any) -> RandomDecoder:
    """Any shape within what a test can afford; overrides: of shape and parts."""

    def sometimes(value: float) -> float:
        return value if rng.random() < 0.3 else 0.0

    num_kv_heads = rng.randint(1, 3)
    num_layers = rng.randint(1, 3)
    drawn: dict[str, Any] = {
        "num_layers": num_layers,
        "hidden_size": rng.randint(1, 100),
        "num_heads": num_kv_heads * rng.choice([1, 1, 2, 3, 4, 5, 7, 12, 13, 17]),
        "num_kv_heads": num_kv_heads,
        "head_dim": rng.choice([2, 8, 12, 16, 24, 32, 64, 80, 96, 128]),
        "intermediate_size": rng.randint(1, 100),
        "vocab_size": rng.choice([2, 31, 131, 300]),
        "activation": rng.choice([*Activation]),
        "block_size": rng.choice([16, 16, 32, 128]),
        "attention_soft_cap": sometimes(3.0),
        "logit_soft_cap": sometimes(7.0),
        "embedding_scale": rng.choice([1.0, 1.0, 7.0]),
        "qkv_bias": rng.random() < 0.3,
        "o_bias": rng.random() < 0.3,
        "mlp_bias": rng.random() < 0.3,
        "head_norms": rng.random() < 0.3,
        "output_norms": rng.random() < 0.3,
        "is_tied": rng.random() < 0.5,
        "windows": tuple(
            rng.choice([None, rng.choice([1, 5, 16, 63, 64, 65, 200, 512, 530])])
            for _ in range(num_layers)
        ),
    }
    drawn |= overrides
    parts = {f.name: drawn.pop(f.name) for f in dataclasses.fields(Parts) if f.name in drawn}
    return make_decoder(rng.randrange(2**32), Parts(**parts), **drawn)


def to_element(values: Floats, element: Element) -> Weights:
    """float32 as it is; bfloat16 as its bits, to the nearest, ties to even, a NaN stays one."""
    if element is Element.FLOAT32:
        return values
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def to_float(weights: Weights) -> Floats:
    if weights.dtype == np.float32:
        return weights.view(np.float32)
    return (weights.astype(np.uint32) << 16).view(np.float32)


def _draw_layer(
    rng: np.random.Generator, shape: DecoderShape, parts: Parts, index: int
) -> RandomLayer:
    hidden, inner, head_dim = shape.hidden_size, shape.intermediate_size, shape.head_dim
    q_size, kv_size = shape.num_heads * head_dim, shape.num_kv_heads * head_dim
    matrices = {
        "q": (q_size, hidden, parts.qkv_bias),
        "k": (kv_size, hidden, parts.qkv_bias),
        "v": (kv_size, hidden, parts.qkv_bias),
        "o": (hidden, q_size, parts.o_bias),
        "gate": (inner, hidden, parts.mlp_bias),
        "up": (inner, hidden, parts.mlp_bias),
        "down": (hidden, inner, parts.mlp_bias),
    }
    norms = {
        "attention_norm": (hidden, True),
        "attention_output_norm": (hidden, parts.output_norms),
        "mlp_norm": (hidden, True),
        "mlp_output_norm": (hidden, parts.output_norms),
        "query_norm": (head_dim, parts.head_norms),
        "key_norm": (head_dim, parts.head_norms),
    }
    biases = {f"{name}_bias": rows for name, (rows, _, has_bias) in matrices.items() if has_bias}
    return RandomLayer(
        {
            # The sums keep the size of their inputs, whatever the shape.
            name: to_element(_uniform(rng, rows, columns) * _gain(columns), shape.element)
            for name, (rows, columns, _) in matrices.items()
        },
        {name: 1 + _uniform(rng, size) for name, (size, has_norm) in norms.items() if has_norm}
        | {name: _uniform(rng, size) for name, size in biases.items()},
        rotary_table=index % 2,
        window=parts.windows[index % len(parts.windows)],
    )


def _uniform(rng: np.random.Generator, *size: int) -> Floats:
    """Within ±0.5."""
    return rng.random(size, np.float32) - np.float32(0.5)


def _gain(num_summed: int) -> np.float32:
    return np.float32((12 / num_summed) ** 0.5)


def _rotary_table(shape: DecoderShape, theta: float) -> tuple[Floats, Floats]:
    frequencies = theta ** -(np.arange(0, shape.head_dim, 2) / shape.head_dim)
    angles = np.arange(shape.num_positions)[:, None] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
