"""`ByteTokenizer`: one token a byte, for the simulator and for tests.

Needs no file. Its chat format is ChatML, given as `CHAT_TEMPLATE`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from refectory_server.tokenizer.tokenizer import decode_tokens

EOS_TOKEN = "<|endoftext|>"
SPECIAL_TOKENS = (EOS_TOKEN, "<|im_start|>", "<|im_end|>")
"""Their ids follow the 256 bytes, in this order."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_SPECIAL_PATTERN = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")")


class ByteTokenizer:
    """A prompt of n bytes has n tokens: no token is added at the start."""

    vocab_size = 256 + len(SPECIAL_TOKENS)
    bos_token_id: int | None = None
    eos_token_id: int | None = 256
    special_token_ids = frozenset(range(256, vocab_size))
    special_tokens: Mapping[str, str] = {"eos_token": EOS_TOKEN}
    num_leading_spaces = 0
    max_chars_per_token = max(map(len, SPECIAL_TOKENS))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = []
        for piece in _SPECIAL_PATTERN.split(text):
            if piece in SPECIAL_TOKENS:
                ids.append(256 + SPECIAL_TOKENS.index(piece))
            else:
                ids += piece.encode()
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return decode_tokens(self, ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        if 0 <= token_id < 256:
            return bytes([token_id])
        if 256 <= token_id < self.vocab_size:
            return SPECIAL_TOKENS[token_id - 256].encode()
        return b""
