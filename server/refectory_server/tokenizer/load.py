"""`load_tokenizer` and `load_chat_template`: the text side of a model's files.

Owns which file counts for what. Knows the folder layout of the model hub (tokenizer.json,
tokenizer_config.json, special_tokens_map.json, chat_template.jinja) and leaves GGUF to `gguf.py`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from refectory_server.errors import StartupError
from refectory_server.models.gguf_metadata import read_gguf_metadata
from refectory_server.models.json_file import read_json_object
from refectory_server.models.source import ModelFiles
from refectory_server.tokenizer.bos_eos import set_added_bos_eos
from refectory_server.tokenizer.chat_template import ChatTemplate
from refectory_server.tokenizer.gguf import gguf_chat_template, tokenizer_from_gguf
from refectory_server.tokenizer.token_spelling import UnsupportedDecoder, spelling_of
from refectory_server.tokenizer.tokenizer import HFTokenizer

logger = logging.getLogger(__name__)

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


def load_tokenizer(files: ModelFiles) -> HFTokenizer:
    """The model's tokenizer, from its folder or its .gguf file.

    Raises `StartupError` with reason `TokenizerInvalid`, naming the file, where it is missing,
    broken, or of a kind not known here.
    """
    if files.is_gguf:
        return tokenizer_from_gguf(read_gguf_metadata(files.path), source=str(files.path))
    return _load_from_folder(files.path)


def load_chat_template(
    files: ModelFiles, chat_template: str | None, special_tokens: Mapping[str, str]
) -> ChatTemplate | None:
    """The chat template: `chat_template` (a path or the text) where given, else the model's own.

    A model without one returns None. Of a folder's files chat_template.jinja comes before
    tokenizer_config.json, as in transformers. Raises `StartupError` with reason
    `ChatTemplateInvalid` for one that is no text, cannot be read or is not Jinja.
    """
    if chat_template is not None:
        return ChatTemplate(read_chat_template_flag(chat_template), special_tokens)
    source = (
        gguf_chat_template(read_gguf_metadata(files.path))
        if files.is_gguf
        else _chat_template_of_folder(files.path)
    )
    return None if source is None else ChatTemplate(source, special_tokens)


def _load_from_folder(folder: Path) -> HFTokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise _invalid(f"{folder} has no tokenizer.json, the only tokenizer file supported")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise _invalid(f"{path} is not a valid tokenizer file: {error}") from error
    config_path = folder / "tokenizer_config.json"
    config = _read_json(config_path)
    special_tokens = _named_tokens(folder / "special_tokens_map.json") | _named_tokens(config_path)
    backend.no_truncation()
    backend.no_padding()
    _add_missing_tokens(backend, config, path)
    _mark_special(backend, special_tokens)
    _apply_add_flags(backend, config, special_tokens, config_path)
    try:
        spelling = spelling_of(json.loads(backend.to_str())["decoder"])
    except UnsupportedDecoder as error:
        raise _invalid(f"{path} is not supported: {error}") from error
    return HFTokenizer(backend, spelling, special_tokens)


def _add_missing_tokens(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], path: Path
) -> None:
    """Add the tokens that only tokenizer_config.json lists, in the order of their ids."""
    known = backend.get_added_tokens_decoder()
    for token_id, token in _listed_tokens(config, path):
        if token_id in known:
            continue
        backend.add_tokens([token])
        if backend.token_to_id(token.content) != token_id:
            raise _invalid(
                f"{path} and tokenizer_config.json disagree: {token.content} is token "
                f"{backend.token_to_id(token.content)} in one and {token_id} in the other"
            )


def _listed_tokens(config: Mapping[str, Any], path: Path) -> list[tuple[int, AddedToken]]:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    listed = config.get("added_tokens_decoder") or {}
    try:
        tokens = {
            int(token_id): AddedToken(
                entry["content"], **{flag: bool(entry.get(flag, False)) for flag in flags}
            )
            for token_id, entry in listed.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _invalid(
            f"{path.with_name('tokenizer_config.json')} has a malformed added_tokens_decoder: "
            f"{type(error).__name__}: {error}"
        ) from error
    return sorted(tokens.items(), key=lambda item: item[0])


def _mark_special(backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> None:
    """Named tokens are special even where tokenizer.json does not say so."""
    special = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
    backend.add_special_tokens(
        [
            AddedToken(text, normalized=False, special=True)
            for text in dict.fromkeys(special_tokens.values())
            if text not in special and backend.token_to_id(text) is not None
        ]
    )


def _apply_add_flags(
    backend: tokenizers.Tokenizer,
    config: Mapping[str, Any],
    special_tokens: Mapping[str, str],
    path: Path,
) -> None:
    """add_bos_token and add_eos_token, where written, replace what tokenizer.json adds."""
    add_bos, add_eos = config.get("add_bos_token"), config.get("add_eos_token")
    for name, flag in (("add_bos_token", add_bos), ("add_eos_token", add_eos)):
        if not isinstance(flag, bool | None):
            raise _invalid(f"{path}: {name} is {flag!r:.80}; it must be true or false")
    if add_bos is not None or add_eos is not None:
        set_added_bos_eos(backend, special_tokens, add_bos=bool(add_bos), add_eos=bool(add_eos))


def _chat_template_of_folder(folder: Path) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return _read_text(path)
    path = folder / "tokenizer_config.json"
    match _read_json(path).get("chat_template"):
        case None:
            return None
        case str(template):
            return template
        case list(named) if all(map(_is_named_template, named)):
            templates = {entry["name"]: entry["template"] for entry in named}
            if named and "default" not in templates:
                logger.warning(
                    "%s has the chat templates %s, none of them named default: chats are refused; "
                    "--chat-template takes one",
                    path,
                    ", ".join(templates),
                )
            return templates.get("default")
        case value:
            raise StartupError(
                f"{path}: chat_template is {value!r:.80}; it must be a string or a list of "
                "objects with the strings name and template; --chat-template takes its place",
                reason="ChatTemplateInvalid",
            )


def _is_named_template(entry: object) -> bool:
    match entry:
        case {"name": str(), "template": str()}:
            return True
    return False


def read_chat_template_flag(chat_template: str) -> str:
    """The Jinja text that --chat-template gives: itself, or the file it names."""
    if any(char in chat_template for char in "{}\n"):
        return chat_template
    path = os.path.expanduser(chat_template)
    if not os.path.isfile(path):  # false, too, for what can be no name
        raise StartupError(
            f"--chat-template is {chat_template}: neither a file nor Jinja text",
            reason="ChatTemplateInvalid",
        )
    return _read_text(Path(path))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(
            f"cannot read the chat template {path}: {error}", reason="ChatTemplateInvalid"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; empty where there is no such file."""
    if not path.is_file():
        return {}
    return read_json_object(path, "TokenizerInvalid")


def _named_tokens(path: Path) -> dict[str, str]:
    """Texts of the tokens with a role; each is written as its text, or an object with `content`."""
    texts = {}
    values = _read_json(path)
    for name in _NAMED_TOKENS:
        match values.get(name):
            case str(text) | {"content": str(text)}:
                texts[name] = text
            case None:
                pass
            case value:
                raise _invalid(
                    f"{path}: {name} is {value!r:.80}; it must be a string or an object with the "
                    "string content"
                )
    return texts


def _invalid(message: str) -> StartupError:
    return StartupError(message, reason="TokenizerInvalid")
