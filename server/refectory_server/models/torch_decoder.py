"""`TorchDecoder`: the forward pass of any `DecoderSpec` in plain torch.

Owns the packed weights. Knows no requests: it sees packed tokens, their positions, and KV
tensors that belong to the runner.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from refectory_kernels import reference as ops
from refectory_kernels.attention_metadata import AttentionMetadata
from refectory_server.models.decoder_spec import DecoderSpec
from refectory_server.models.tensor_shapes import EMBEDDING, FINAL_NORM, LM_HEAD, layer_prefix
from refectory_server.models.weights import WeightTable


@dataclass(frozen=True, slots=True)
class Linear:
    """weight: [out_features, in_features]; bias: [out_features]."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return F.linear(rows, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer's weights; q, k, v lie in one matrix, gate and up in another."""

    attention_norm: torch.Tensor
    qkv: Linear
    o: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class TorchDecoder:
    """A decoder's weights and arithmetic. The residual stream and the norms are float32."""

    def __init__(self, spec: DecoderSpec, weights: WeightTable) -> None:
        """Takes the tensors out of `weights` layer by layer, so that no copy of all is held."""
        self.spec = spec
        self._scale = spec.head_dim**-0.5
        self._embedding = weights.pop(EMBEDDING)
        self._layers = [_pack_layer(weights, layer_prefix(i)) for i in range(spec.num_layers)]
        self._final_norm = weights.pop(FINAL_NORM)
        self._lm_head = self._embedding if spec.tied_embeddings else weights.pop(LM_HEAD)
        self._cos, self._sin = ops.rotary_tables(spec.max_position, spec.head_dim, spec.rope.theta)

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """The last layer's residual stream; the step's keys and values go into `kv_cache`.

        token_ids, positions: [num_tokens], int64
        kv_cache: [num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim]
        returns [num_tokens, hidden_size], float32
        """
        spec = self.spec
        cos, sin = self._cos[positions], self._sin[positions]
        residual = self._embedding[token_ids].float()
        normed = ops.rms_norm(residual, self._layers[0].attention_norm, spec.norm_eps)
        for index, layer in enumerate(self._layers):
            attended = self._attend(layer, normed, cos, sin, kv_cache[index], metadata)
            normed = ops.add_rms_norm(layer.o(attended), residual, layer.mlp_norm, spec.norm_eps)
            update = layer.down(ops.silu_mul(layer.gate_up(normed)))
            if index + 1 < len(self._layers):
                next_norm = self._layers[index + 1].attention_norm
                normed = ops.add_rms_norm(update, residual, next_norm, spec.norm_eps)
        residual += update
        return residual

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden: [num_rows, hidden_size] of `forward`; returns [num_rows, vocab_size], float32."""
        normed = ops.rms_norm(hidden, self._final_norm, self.spec.norm_eps)
        return F.linear(normed, self._lm_head).float()

    def _attend(
        self,
        layer: DecoderLayer,
        normed: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        spec = self.spec
        heads = layer.qkv(normed).view(len(normed), -1, spec.head_dim)
        num_rotated = spec.num_heads + spec.num_kv_heads
        rotated = ops.rotary(heads[:, :num_rotated], cos, sin)
        query, key = rotated[:, : spec.num_heads], rotated[:, spec.num_heads :]
        key_cache, value_cache = kv_cache.unbind(0)
        ops.kv_cache_store(
            key, heads[:, num_rotated:], key_cache, value_cache, metadata.slot_mapping
        )
        attended = ops.paged_attention(query, key_cache, value_cache, metadata, self._scale)
        return attended.flatten(1)


def _pack_layer(weights: WeightTable, prefix: str) -> DecoderLayer:
    def linear(*names: str) -> Linear:
        matrices = [weights.pop(f"{prefix}{name}.weight") for name in names]
        biases = [weights.pop(f"{prefix}{name}.bias", None) for name in names]
        rows = [bias for bias in biases if bias is not None]
        return Linear(_stack(matrices), _stack(rows) if rows else None)

    return DecoderLayer(
        attention_norm=weights.pop(f"{prefix}input_layernorm.weight"),
        qkv=linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        o=linear("self_attn.o_proj"),
        mlp_norm=weights.pop(f"{prefix}post_attention_layernorm.weight"),
        gate_up=linear("mlp.gate_proj", "mlp.up_proj"),
        down=linear("mlp.down_proj"),
    )


def _stack(tensors: list[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
