"""What `LLM` takes: prompts, conversations and parameters, alone or in lists.

Owns which forms there are and the words for anything else. Knows no tokenizer and no engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from refectory_server.errors import InvalidRequest
from refectory_server.sampling_params import SamplingParams, as_token_ids

Prompt = str | list[int] | Mapping[str, Any]
"""Text, token ids, or vLLM's `{"prompt": text}` or `{"prompt_token_ids": ids}`."""
Message = Mapping[str, Any]


def list_prompts(prompts: Prompt | Sequence[Prompt]) -> list[tuple[str | None, list[int] | None]]:
    """Text and ids of each prompt, one of them None perhaps. Raises `InvalidRequest` for others."""
    several: Any = prompts
    if isinstance(prompts, str | Mapping) or (prompts and isinstance(prompts[0], int)):
        several = [prompts]
    return [_text_and_ids(prompt) for prompt in several]


def _text_and_ids(prompt: Any) -> tuple[str | None, list[int] | None]:
    match prompt:
        case str():
            return prompt, None
        case list():
            return None, list(as_token_ids("prompt", prompt))
        case {"prompt_token_ids": token_ids}:
            return prompt.get("prompt"), list(as_token_ids("prompt_token_ids", token_ids))
        case {"prompt": str(text)}:
            return text, None
        case _:
            raise InvalidRequest(
                f"a prompt is {prompt!r:.80}; allowed are a string, a list of token ids and a dict "
                "with 'prompt' or 'prompt_token_ids'",
                field="prompt",
            )


def list_conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> list[Sequence[Message]]:
    """One conversation or several, as several. Raises `InvalidRequest` for what is none."""
    conversations: Any = messages
    if not _is_list(messages) or (messages and isinstance(messages[0], Mapping)):
        conversations = [messages]
    for conversation in conversations:
        if not _is_list(conversation) or not all(isinstance(m, Mapping) for m in conversation):
            raise InvalidRequest(
                f"a conversation is {conversation!r:.80}; it must be a list of messages, dicts "
                "with 'role' and 'content'",
                field="messages",
            )
    return list(conversations)


def list_params(
    params: SamplingParams | Sequence[SamplingParams], count: int
) -> list[SamplingParams]:
    """Those of each of `count` prompts. Raises `InvalidRequest` for another number of them."""
    if isinstance(params, SamplingParams):
        return [params] * count
    for one in params:
        if not isinstance(one, SamplingParams):
            raise InvalidRequest(
                f"sampling_params holds {one!r:.80}; each must be SamplingParams",
                field="sampling_params",
            )
    if len(params) != count:
        raise InvalidRequest(
            f"there are {len(params)} sampling_params for {count} prompts; "
            "give one for all, or one for each",
            field="sampling_params",
        )
    return list(params)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
