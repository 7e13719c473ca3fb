"""Which tokens `encode` adds around a text."""

from __future__ import annotations

from collections.abc import Mapping

import tokenizers
from tokenizers.processors import TemplateProcessing


def set_added_bos_eos(
    backend: tokenizers.Tokenizer,
    special_tokens: Mapping[str, str],
    *,
    add_bos: bool,
    add_eos: bool,
) -> None:
    """Make `backend` add exactly these; a token it does not have is not added."""
    wanted = [name for name, add in (("bos_token", add_bos), ("eos_token", add_eos)) if add]
    # Under their names, not their texts: a text with a colon would be read as something else.
    added = {
        name: {"id": name, "ids": [token_id], "tokens": [special_tokens[name]]}
        for name in wanted
        if name in special_tokens
        and (token_id := backend.token_to_id(special_tokens[name])) is not None
    }
    single = [name for name in ("bos_token", "$A", "eos_token") if name == "$A" or name in added]
    backend.post_processor = TemplateProcessing(single=single, special_tokens=list(added.values()))
