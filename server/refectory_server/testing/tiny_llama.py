"""Tiny Llama models with random weights, made by transformers and saved as real checkpoints.

The code under test sees only the folder; transformers' own model is the truth to compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from refectory_server.config import CacheConfig, ModelConfig, ServerConfig
from refectory_server.runner.torch_model_runner import TorchModelRunner, load_torch_runner

TINY_CONFIG: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}


def make_tiny_llama(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    **overrides: Any,
) -> Any:
    """Save a model with `TINY_CONFIG` and `overrides` into `folder`; returns transformers' own.

    The weights are large enough that greedy tokens vary, and the biases are not zero.
    """
    torch.manual_seed(0)
    config = LlamaConfig(**{**TINY_CONFIG, **overrides}, initializer_range=0.2)
    model = LlamaForCausalLM(config).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "norm.weight", "layernorm.weight")):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


@dataclass(frozen=True, slots=True)
class TinyPair:
    """The same weights in two programs: a checkpoint's folder, and transformers' model."""

    folder: Path
    reference: Any

    def load(
        self, *, dtype: Literal["auto", "float32", "bfloat16"] = "auto", num_blocks: int = 200
    ) -> TorchModelRunner:
        config = ServerConfig(
            model=ModelConfig(model=str(self.folder), dtype=dtype),
            cache=CacheConfig(num_gpu_blocks_override=num_blocks, block_size=8),
        )
        return load_torch_runner(config, lambda phase, progress: None)

    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """transformers' logits after every token: [num_tokens, vocab_size]."""
        with torch.inference_mode():
            logits: torch.Tensor = self.reference(torch.tensor([token_ids]), use_cache=False).logits
        return logits[0]

    def greedy_ids(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """transformers' greedy continuation, every token from a whole forward pass."""
        token_ids = list(prompt)
        for _ in range(num_tokens):
            token_ids.append(int(self.logits(token_ids)[-1].argmax()))
        return token_ids[len(prompt) :]
