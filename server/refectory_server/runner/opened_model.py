"""`OpenedModel`: a model's files, read as far as is needed before weights are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refectory_server.models.decoder_spec import DecoderSpec
from refectory_server.models.gguf_file import GgufFile
from refectory_server.models.hf_config import read_eos_token_ids, read_hf_config
from refectory_server.models.registry import read_decoder_spec
from refectory_server.models.source import ModelFiles, resolve_model


@dataclass(frozen=True, slots=True)
class OpenedModel:
    files: ModelFiles
    gguf: GgufFile | None
    hf_config: dict[str, Any]
    spec: DecoderSpec

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return read_eos_token_ids(self.files, self.hf_config)


def open_model(model: str) -> OpenedModel:
    """`model` as the user wrote it. Raises `StartupError`."""
    files = resolve_model(model)
    gguf = GgufFile(files.path) if files.is_gguf else None
    hf_config = read_hf_config(files, gguf)
    return OpenedModel(files, gguf, hf_config, read_decoder_spec(hf_config))
