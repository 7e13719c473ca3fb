"""`TorchDecoder`: the forward pass of any `DecoderSpec` in plain torch.

Owns the packed weights and the rotary tables. Knows no requests: it sees packed tokens, their
positions, and KV tensors that belong to the runner.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from refectory_kernels import reference as ops
from refectory_kernels.attention_metadata import AttentionMetadata
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

_GATES = {Activation.SILU: ops.silu_mul, Activation.GELU_TANH: ops.gelu_tanh_mul}
Rotation = tuple[torch.Tensor, torch.Tensor]
"""cos and sin, [rows, head_dim / 2] each."""


@dataclass(frozen=True, slots=True)
class Linear:
    """weight: [out_features, in_features]; bias: [out_features]."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return F.linear(rows, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer's weights; q, k, v lie in one matrix, gate and up in another.

    A norm that the family lacks is None.
    """

    rope_index: int
    """Which of the decoder's rotary tables it uses."""
    window: int | None
    attention_norm: torch.Tensor
    qkv: Linear
    head_norm: torch.Tensor | None
    """[num_heads + num_kv_heads, head_dim]: the query norm for every head, then the key norm."""
    o: Linear
    attention_output_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    mlp_output_norm: torch.Tensor | None


class TorchDecoder:
    """A decoder's weights and arithmetic. The residual stream and the norms are float32."""

    def __init__(self, spec: DecoderSpec, weights: WeightTable, num_positions: int) -> None:
        """Takes the tensors out of `weights` layer by layer, so that no copy of all is held.

        num_positions: tokens of one sequence at most
        """
        self.spec = spec
        self._scale = spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
        self._gate = _GATES[spec.activation]
        self._embedding = weights.pop(EMBEDDING)
        self._embedding_scale = float(
            torch.tensor(spec.embedding_scale, dtype=self._embedding.dtype)
        )
        ropes = list(dict.fromkeys(attention.rope for attention in spec.attention))
        self._rotary_tables = [rope_tables(rope, num_positions, spec.head_dim) for rope in ropes]
        self._layers = [
            _pack_layer(spec, weights, layer, ropes.index(attention.rope))
            for layer, attention in enumerate(spec.attention)
        ]
        self._final_norm = weights.pop(FINAL_NORM)
        self._lm_head = self._embedding if spec.tied_embeddings else weights.pop(LM_HEAD)

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
        metadata: built for `spec.windows`
        returns [num_tokens, hidden_size], float32
        """
        eps, offset = self.spec.norm_eps, self.spec.norm_weight_offset
        rotations = [(cos[positions], sin[positions]) for cos, sin in self._rotary_tables]
        residual = self._embedding[token_ids].float()
        if self._embedding_scale != 1.0:
            residual *= self._embedding_scale
        normed = ops.rms_norm(residual, self._layers[0].attention_norm, eps, offset)
        for index, layer in enumerate(self._layers):
            rotation = rotations[layer.rope_index]
            update = layer.o(self._attend(layer, normed, rotation, kv_cache[index], metadata))
            if layer.attention_output_norm is not None:
                update = ops.rms_norm(update, layer.attention_output_norm, eps, offset)
            normed = ops.add_rms_norm(update, residual, layer.mlp_norm, eps, offset)
            update = layer.down(self._gate(layer.gate_up(normed)))
            if layer.mlp_output_norm is not None:
                update = ops.rms_norm(update, layer.mlp_output_norm, eps, offset)
            if index + 1 < len(self._layers):
                next_norm = self._layers[index + 1].attention_norm
                normed = ops.add_rms_norm(update, residual, next_norm, eps, offset)
        residual += update
        return residual

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden: [num_rows, hidden_size] of `forward`; returns [num_rows, vocab_size], float32."""
        spec = self.spec
        normed = ops.rms_norm(hidden, self._final_norm, spec.norm_eps, spec.norm_weight_offset)
        logits = F.linear(normed, self._lm_head).float()
        if spec.logit_soft_cap is not None:
            logits = spec.logit_soft_cap * torch.tanh(logits / spec.logit_soft_cap)
        return logits

    def _attend(
        self,
        layer: DecoderLayer,
        normed: torch.Tensor,
        rotation: Rotation,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        spec = self.spec
        heads = layer.qkv(normed).view(len(normed), -1, spec.head_dim)
        num_rotated = spec.num_heads + spec.num_kv_heads
        rotated = heads[:, :num_rotated]
        if layer.head_norm is not None:
            rotated = ops.rms_norm(rotated, layer.head_norm, spec.norm_eps, spec.norm_weight_offset)
        rotated = ops.rotary(rotated, *rotation)
        query, key = rotated[:, : spec.num_heads], rotated[:, spec.num_heads :]
        key_cache, value_cache = kv_cache.unbind(0)
        ops.kv_cache_store(
            key, heads[:, num_rotated:], key_cache, value_cache, metadata.slot_mapping
        )
        attended = ops.paged_attention(
            query,
            key_cache,
            value_cache,
            metadata,
            self._scale,
            window=layer.window,
            soft_cap=spec.attention_soft_cap,
        )
        return attended.flatten(1)


def _pack_layer(
    spec: DecoderSpec, weights: WeightTable, layer: int, rope_index: int
) -> DecoderLayer:
    prefix = layer_prefix(layer)
    norms = layer_norms(spec)

    def linear(*names: str) -> Linear:
        matrices = [weights.pop(f"{prefix}{name}.weight") for name in names]
        biases = [weights.pop(f"{prefix}{name}.bias", None) for name in names]
        rows = [bias for bias in biases if bias is not None]
        return Linear(_stack(matrices), _stack(rows) if rows else None)

    def optional(name: str | None) -> torch.Tensor | None:
        return None if name is None else weights.pop(f"{prefix}{name}")

    head_norm = None
    if spec.head_norms:
        query_norm = weights.pop(f"{prefix}{QUERY_NORM}").expand(spec.num_heads, -1)
        key_norm = weights.pop(f"{prefix}{KEY_NORM}").expand(spec.num_kv_heads, -1)
        head_norm = torch.cat((query_norm, key_norm))
    return DecoderLayer(
        rope_index=rope_index,
        window=spec.attention[layer].window,
        attention_norm=weights.pop(f"{prefix}{norms.attention}"),
        qkv=linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        head_norm=head_norm,
        o=linear("self_attn.o_proj"),
        attention_output_norm=optional(norms.attention_output),
        mlp_norm=weights.pop(f"{prefix}{norms.mlp}"),
        gate_up=linear("mlp.gate_proj", "mlp.up_proj"),
        down=linear("mlp.down_proj"),
        mlp_output_norm=optional(norms.mlp_output),
    )


def _stack(tensors: list[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
