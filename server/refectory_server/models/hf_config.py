"""The model's Hugging Face config as a dict, from config.json or from GGUF metadata.

`registry` gives the dict its meaning. Knows no torch.
"""

from __future__ import annotations

from typing import Any

from refectory_server.errors import StartupError
from refectory_server.models.gguf_config import read_gguf_config
from refectory_server.models.gguf_file import GgufFile
from refectory_server.models.json_file import read_json_object
from refectory_server.models.source import ModelFiles

GENERATION_CONFIG = "generation_config.json"


def read_hf_config(files: ModelFiles, gguf: GgufFile | None = None) -> dict[str, Any]:
    """The config of `files`; `gguf` is its opened file where it is already at hand.

    Raises `StartupError`: `ModelInvalid`, `UnsupportedArchitecture`, `UnsupportedModelFeature`.
    """
    if files.is_gguf:
        return read_gguf_config(gguf or GgufFile(files.path))
    return read_json_object(files.path / "config.json", "ModelInvalid")


def read_eos_token_ids(files: ModelFiles, hf_config: dict[str, Any]) -> tuple[int, ...]:
    """The model's end tokens: generation_config.json's where it names any, else the config's."""
    path = files.path / GENERATION_CONFIG
    sources = [hf_config]
    if not files.is_gguf and path.is_file():
        sources.insert(0, read_json_object(path, "ModelInvalid"))
    for source in sources:
        value = source.get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(map(_is_token_id, ids)):
            raise StartupError(
                f"eos_token_id of {files.name} is {value}; allowed is a token id or a list of them",
                reason="ModelInvalid",
            )
        return tuple(dict.fromkeys(ids))
    return ()


def _is_token_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
