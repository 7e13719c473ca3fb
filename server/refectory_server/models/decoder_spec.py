"""`DecoderSpec`: a decoder family as data, which every executor reads.

Knows neither where the numbers come from (`registry`) nor how they are computed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Activation(enum.StrEnum):
    """What the gate of the gated MLP passes through."""

    SILU = "silu"


class RopeKind(enum.StrEnum):
    """How the rotary frequencies follow from theta."""

    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding: the two halves of a head are rotated against each other."""

    theta: float
    kind: RopeKind = RopeKind.DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A pre-norm decoder: RMSNorm, grouped-query attention with rope, gated MLP."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope: RopeSpec
    max_position: int
    """Tokens of one sequence the model was made for."""
    activation: Activation = Activation.SILU
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    tied_embeddings: bool = False
    """lm_head uses the embedding's matrix."""
    checkpoint_dtype: str = "float32"
    """float32, bfloat16 or float16."""

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim
