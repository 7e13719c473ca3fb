"""`decoder_logits`: a sequence through a `TorchDecoder`, without a runner."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from refectory_kernels.attention_metadata import build_attention_metadata
from refectory_server.models.torch_decoder import TorchDecoder

BLOCK_SIZE = 8


@torch.inference_mode()
def decoder_logits(decoder: TorchDecoder, token_ids: Sequence[int], chunk: int) -> torch.Tensor:
    """Logits after every token, `chunk` tokens a forward pass: [num_tokens, vocab_size].

    The blocks lie in reverse, and hold NaN where nothing was stored.
    """
    spec = decoder.spec
    num_blocks = -(-len(token_ids) // BLOCK_SIZE)
    table = torch.arange(num_blocks).flip(0)
    kv_cache = torch.full(
        (spec.num_layers, 2, num_blocks, BLOCK_SIZE, spec.num_kv_heads, spec.head_dim),
        float("nan"),
        dtype=decoder.dtype,
    )
    logits = []
    for start in range(0, len(token_ids), chunk):
        end = min(start + chunk, len(token_ids))
        metadata = build_attention_metadata(
            [end - start], [end], [table], BLOCK_SIZE, decoder.dtype, spec.windows
        )
        hidden = decoder.forward(
            torch.tensor(token_ids[start:end]), torch.arange(start, end), kv_cache, metadata
        )
        logits.append(decoder.compute_logits(hidden))
    return torch.cat(logits)
