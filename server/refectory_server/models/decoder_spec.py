"""`DecoderSpec`: a decoder family as data, which every executor reads.

Knows neither where the numbers come from (`registry`) nor how they are computed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from refectory_server.models.rope_spec import RopeSpec


class Activation(enum.StrEnum):
    """What the gate of the gated MLP passes through, by Hugging Face's name."""

    SILU = "silu"
    GELU_TANH = "gelu_pytorch_tanh"


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What may differ between the attention of two layers.

    The KV cache has the same blocks for every layer, windowed or not: a block that has left a
    window stays allocated, since a prefix hit may start from it and other layers may read it.
    """

    rope: RopeSpec
    window: int | None = None
    """Keys a token sees at most: its own and those right before it. None: all before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A pre-norm decoder: RMSNorm, grouped-query attention with rope, gated MLP."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    attention: tuple[AttentionSpec, ...]
    """One a layer."""
    max_position: int
    """Tokens of one sequence the model was made for."""
    activation: Activation = Activation.SILU
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False
    """Each head's query and key pass through an RMSNorm before rope."""
    output_norms: bool = False
    """What attention and MLP compute passes through an RMSNorm before it is added."""
    norm_weight_offset: float = 0.0
    """Added to the weights of every RMSNorm."""
    embedding_scale: float = 1.0
    """Multiplies the embedding's rows, rounded to their type."""
    attention_scale: float | None = None
    """Multiplies q·k. None: head_dim ** -0.5."""
    attention_soft_cap: float | None = None
    """Scaled q·k becomes cap * tanh(q·k / cap)."""
    logit_soft_cap: float | None = None
    """The same for the logits."""
    tied_embeddings: bool = False
    """lm_head uses the embedding's matrix."""
    checkpoint_dtype: str = "float32"
    """float32, bfloat16 or float16."""

    @property
    def num_layers(self) -> int:
        return len(self.attention)

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def windows(self) -> tuple[int, ...]:
        """Every window that some layer has, once."""
        return tuple(sorted({a.window for a in self.attention if a.window is not None}))
