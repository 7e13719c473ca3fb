"""The files needed of a hub's model: config, tokenizer, safetensors; never pickles or code."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

from refectory_server.errors import StartupError
from refectory_server.models.safetensors_files import (
    INDEX_FILE,
    SINGLE_FILE,
    index_file_names,
    no_weights,
)

CONFIG_FILE = "config.json"
TEXT_FILES = (
    CONFIG_FILE,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def text_files(present: Collection[str], model: str) -> list[str]:
    """What is needed besides weights. Raises `StartupError` where there is no config."""
    if CONFIG_FILE not in present:
        raise StartupError(f"model {model} has no {CONFIG_FILE} on its hub", reason="ModelInvalid")
    return [name for name in TEXT_FILES if name in present]


def weight_files(present: Collection[str], read: Callable[[str], bytes], model: str) -> list[str]:
    """The safetensors files, found through the index where there is one; `read` reads it.

    Raises `StartupError` with reason `ModelInvalid` where they are missing.
    """
    if INDEX_FILE not in present:
        if SINGLE_FILE in present:
            return [SINGLE_FILE]
        raise no_weights(f"model {model}", sorted(present))
    source = f"{INDEX_FILE} of model {model}"
    try:
        index = json.loads(read(INDEX_FILE))
    except ValueError as error:
        raise StartupError(f"{source} is not JSON: {error}", reason="ModelInvalid") from error
    names = index_file_names(index if isinstance(index, dict) else {}, source)
    for name in names:
        if name not in present:
            raise StartupError(f"{source} names {name}, which is not there", reason="ModelInvalid")
    return [INDEX_FILE, *names]
