"""Log-probabilities in the shapes of the two generation routes.

Owns how a token is written, alone and perhaps half a character. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Iterable

from refectory_server.api.responses import (
    ChatLogprobs,
    ChatTokenLogprob,
    CompletionLogprobs,
    TopLogprob,
)
from refectory_server.engine.text_logprobs import TextLogprobs
from refectory_server.tokenizer.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have; as in OpenAI's API."""


def chat_logprobs(entries: Iterable[TextLogprobs], tokenizer: Tokenizer) -> ChatLogprobs:
    """Of the tokens that are in the text."""
    content = []
    for entry in entries:
        if entry.is_in_text:
            token = tokenizer.token_bytes(entry.token_id)
            content.append(
                ChatTokenLogprob(
                    token=_text(token),
                    logprob=_finite(entry.logprobs.logprob),
                    bytes=list(token),
                    top_logprobs=[
                        _top_logprob(tokenizer.token_bytes(token_id), logprob)
                        for token_id, logprob in entry.logprobs.top
                    ],
                )
            )
    return ChatLogprobs(content=content, refusal=None)


def completion_logprobs(
    entries: Iterable[TextLogprobs], tokenizer: Tokenizer
) -> CompletionLogprobs:
    """Of the tokens that are in the text. The chosen one is always among the top ones."""
    shape = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for entry in entries:
        if entry.is_in_text:
            token = _unambiguous(tokenizer.token_bytes(entry.token_id))
            logprob = _finite(entry.logprobs.logprob)
            top: dict[str, float] = {}
            for token_id, top_logprob in entry.logprobs.top:
                # Of tokens that read the same the most probable one.
                top.setdefault(_unambiguous(tokenizer.token_bytes(token_id)), _finite(top_logprob))
            top.setdefault(token, logprob)
            shape.tokens.append(token)
            shape.token_logprobs.append(logprob)
            shape.top_logprobs.append(top)
            shape.text_offset.append(entry.text_offset)
    return shape


def _top_logprob(token: bytes, logprob: float) -> TopLogprob:
    return TopLogprob(token=_text(token), logprob=_finite(logprob), bytes=list(token))


def _text(token: bytes) -> str:
    return token.decode("utf-8", errors="replace")


def _unambiguous(token: bytes) -> str:
    """Half a character as `bytes:\\xe2\\x82`, as OpenAI's API writes it: no bytes array goes
    with it, and as U+FFFD it would be the same key for all halves."""
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
