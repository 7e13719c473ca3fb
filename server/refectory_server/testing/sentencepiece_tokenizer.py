"""A small sentencepiece-style tokenizer, laid out like Llama 2's."""

from __future__ import annotations

import json

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers.processors import TemplateProcessing

from refectory_server.tokenizer.token_spelling import spelling_of
from refectory_server.tokenizer.tokenizer import HFTokenizer

SPECIAL_TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}


def sentencepiece_backend() -> tokenizers.Tokenizer:
    """Ids: 3 specials, 256 byte tokens, then `▁`, letters and what merges of `▁hello` need."""
    tokens = [*SPECIAL_TOKENS.values(), *(f"<0x{byte:02X}>" for byte in range(256))]
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("▁", "hello"), ("▁", "▁")]
    tokens += ["▁", *"abcdefghijklmnopqrstuvwxyz", *(a + b for a, b in merges)]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in SPECIAL_TOKENS.values()]
    )
    backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend


def sentencepiece_tokenizer() -> HFTokenizer:
    backend = sentencepiece_backend()
    return HFTokenizer(
        backend, spelling_of(json.loads(backend.to_str())["decoder"]), SPECIAL_TOKENS
    )
