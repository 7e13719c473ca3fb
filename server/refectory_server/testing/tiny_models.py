"""Tiny models of any family with random weights, made by transformers and saved as checkpoints.

Knows the families' features only as fields of transformers' configs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.gemma3 import modeling_gemma3

TINY_SHAPE: dict[str, Any] = {
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
WINDOW = 13
"""Tokens: no multiple of a block, and shorter than the tests' prompts."""

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}

TINY_CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**TINY_SHAPE),
    "llama3 rope": LlamaConfig(**TINY_SHAPE, rope_parameters=_LLAMA3_ROPE),
    "linear rope": LlamaConfig(
        **TINY_SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}
    ),
    "yarn rope": Qwen2Config(**TINY_SHAPE, rope_parameters=_YARN_ROPE),
    "mistral": MistralConfig(**TINY_SHAPE, sliding_window=WINDOW),
    "mistral without window": MistralConfig(**TINY_SHAPE, sliding_window=None, head_dim=12),
    "qwen2": Qwen2Config(**TINY_SHAPE),
    "qwen2 with window": Qwen2Config(
        **TINY_SHAPE, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "qwen3": Qwen3Config(**TINY_SHAPE, head_dim=24, tie_word_embeddings=True),
    "qwen3 with windows": Qwen3Config(
        **TINY_SHAPE,
        head_dim=16,
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "gemma3": Gemma3TextConfig(
        **TINY_SHAPE,
        head_dim=16,
        query_pre_attn_scalar=11,
        sliding_window=WINDOW,
        sliding_window_pattern=3,
    ),
    "gemma3 with caps": Gemma3TextConfig(
        **TINY_SHAPE,
        head_dim=16,
        sliding_window=WINDOW,
        sliding_window_pattern=2,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=7.0,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
        },
    ),
}


def make_tiny_model(
    folder: Path,
    config: PretrainedConfig,
    *,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
) -> Any:
    """Save a model with random weights into `folder`; returns transformers' own.

    The weights are large enough that greedy tokens vary, and neither biases nor norms are what
    they start as.
    """
    torch.manual_seed(0)
    config.initializer_range = 0.2
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = model.to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "norm.weight", "layernorm.weight")):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


@contextmanager
def capped_attention_of_gemma3() -> Iterator[None]:
    """transformers' Gemma 3 reads attn_logit_softcapping, but does not hand it to its attention."""
    attend = modeling_gemma3.eager_attention_forward

    def attend_capped(module: Any, *args: Any, **kwargs: Any) -> Any:
        return attend(module, *args, softcap=module.config.attn_logit_softcapping, **kwargs)

    with patch.object(modeling_gemma3, "eager_attention_forward", attend_capped):
        yield
