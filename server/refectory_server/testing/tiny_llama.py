"""Tiny Llama models with random weights, made by transformers and saved as real checkpoints.

The code under test sees only the folder; transformers' own model is the truth to compare with.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import LlamaConfig

from refectory_kernels.cpu_level import CpuLevel
from refectory_server.config import CacheConfig, ModelConfig, ServerConfig
from refectory_server.runner.cpu_placement import CpuPlacement
from refectory_server.runner.load_native import load_native_runner
from refectory_server.runner.native_model_runner import NativeModelRunner
from refectory_server.runner.torch_model_runner import TorchModelRunner, load_torch_runner
from refectory_server.testing.tiny_models import TINY_SHAPE, make_tiny_model


def make_tiny_llama(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    **overrides: Any,
) -> Any:
    """Save a model with `TINY_SHAPE` and `overrides` into `folder`; returns transformers' own."""
    config = LlamaConfig(**{**TINY_SHAPE, **overrides})
    return make_tiny_model(folder, config, dtype=dtype, max_shard_size=max_shard_size)


@dataclass(frozen=True, slots=True)
class TinyPair:
    """The same weights in two programs: a checkpoint's folder, and transformers' model."""

    folder: Path
    reference: Any

    def load(
        self,
        level: CpuLevel | None = None,
        *,
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        num_blocks: int = 200,
    ) -> TorchModelRunner | NativeModelRunner:
        """level: of the native library, on one thread; None: plain torch.

        Blocks have 8 tokens with torch, and 16 with the library, which has none of 8.
        """
        config = ServerConfig(
            model=ModelConfig(model=str(self.folder), dtype=dtype),
            cache=CacheConfig(
                num_gpu_blocks_override=num_blocks, block_size=8 if level is None else 16
            ),
        )
        if level is None:
            return load_torch_runner(config, lambda *_: None)
        return load_native_runner(config, lambda *_: None, level, CpuPlacement((None,)))

    def with_nan_token(self, folder: Path, token_id: int) -> TinyPair:
        """The same model, saved into `folder`, but for one token whose embedding is NaN."""
        reference = copy.deepcopy(self.reference)
        with torch.no_grad():
            reference.get_input_embeddings().weight[token_id] = float("nan")
        reference.save_pretrained(folder)
        return TinyPair(folder, reference)

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
