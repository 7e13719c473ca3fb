"""A tiny Llama with a tokenizer: a whole model folder that the server can serve in a moment."""

from __future__ import annotations

from pathlib import Path

from refectory_server.testing.sentencepiece_tokenizer import sentencepiece_backend
from refectory_server.testing.tiny_llama import make_tiny_llama


def make_tiny_checkpoint(folder: Path, *, max_shard_size: str = "1GB") -> None:
    """30 tensors, one file or shards, 256 positions, no chat template."""
    backend = sentencepiece_backend()
    make_tiny_llama(folder, max_shard_size=max_shard_size, vocab_size=backend.get_vocab_size())
    backend.save(str(folder / "tokenizer.json"))
