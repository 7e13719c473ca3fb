"""The tokenizer and the chat template of a simulated model, by its profile."""

from __future__ import annotations

from refectory_server.models.source import resolve_model
from refectory_server.simulation_profile import SimulationProfile
from refectory_server.tokenizer.byte_tokenizer import CHAT_TEMPLATE, ByteTokenizer
from refectory_server.tokenizer.chat_template import ChatTemplate
from refectory_server.tokenizer.load import (
    load_chat_template,
    load_tokenizer,
    read_chat_template_flag,
)
from refectory_server.tokenizer.tokenizer import Tokenizer


def load_simulated_tokenizer(profile: SimulationProfile) -> Tokenizer:
    """Raises `StartupError` for a tokenizer that cannot be had."""
    if profile.tokenizer is None:
        return ByteTokenizer()
    return load_tokenizer(resolve_model(profile.tokenizer))


def load_simulated_chat_template(
    profile: SimulationProfile, chat_template: str | None, tokenizer: Tokenizer
) -> ChatTemplate | None:
    """`chat_template` is the flag's value; else the tokenizer's own template."""
    if profile.tokenizer is not None:
        files = resolve_model(profile.tokenizer)
        return load_chat_template(files, chat_template, tokenizer.special_tokens)
    source = CHAT_TEMPLATE if chat_template is None else read_chat_template_flag(chat_template)
    return ChatTemplate(source, tokenizer.special_tokens)
