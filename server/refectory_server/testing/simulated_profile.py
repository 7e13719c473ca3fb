"""A small simulation profile as a file, and the text that a server with it answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from refectory_server.runner.simulated_model_runner import simulated_token
from refectory_server.runner.simulation import BYTE_ALPHABET
from refectory_server.tokenizer.byte_tokenizer import ByteTokenizer

PROFILE = {
    "description": "a test",
    "model": "tiny",
    "num_blocks": 64,
    "max_model_len": 512,
    "kv_bytes_per_token": 1024,
    "step_seconds": {"fixed": 0.001},
}
"""Answers end only at their limit."""


def write_profile(folder: Path, **changes: object) -> str:
    """Write `PROFILE` with `changes` into a file; returns its path."""
    path = folder / "profile.yaml"
    path.write_text(yaml.safe_dump({**PROFILE, **changes}))
    return str(path)


def expected_text(prompt_token_ids: Sequence[int], count: int, seed: int = 0) -> str:
    """The first `count` tokens after a prompt; a prompt of bytes is its own token ids."""
    positions = range(len(prompt_token_ids), len(prompt_token_ids) + count)
    ids = (simulated_token(prompt_token_ids, p, BYTE_ALPHABET, seed=seed) for p in positions)
    return bytes(ids).decode()


def chat_prompt_ids(*messages: tuple[str, str]) -> list[int]:
    """What a chat of (role, content) becomes before it is answered."""
    turns = [f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages]
    return ByteTokenizer().encode("".join(turns) + "<|im_start|>assistant\n")
