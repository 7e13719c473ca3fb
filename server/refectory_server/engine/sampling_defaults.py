"""`SamplingDefaults`: what a model's generation_config.json says of requests that do not say it.

Owns the file's keys and its validation. Does not know requests.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from refectory_server.errors import InvalidRequest, StartupError
from refectory_server.models.json_file import read_json_object
from refectory_server.models.source import ModelFiles
from refectory_server.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

_FIELD_BY_KEY = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""The keys that count. Others are ignored, do_sample among them: a request without a temperature
gets the file's, else 1."""

_INTEGERS = frozenset(["top_k", "max_tokens"])


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Values for what a request leaves out; None leaves it to `SamplingParams`."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None

    def given(self) -> dict[str, float | int]:
        """The fields that have a value."""
        return {
            name: value for name, value in dataclasses.asdict(self).items() if value is not None
        }

    def merged(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        """`requested` (fields of `SamplingParams`; None is left out) over these."""
        return self.given() | {k: v for k, v in requested.items() if v is not None}


def load_sampling_defaults(files: ModelFiles, mode: Literal["auto", "vllm"]) -> SamplingDefaults:
    """From generation_config.json with `auto`; none with `vllm`, for GGUF, or without the file.

    Raises `StartupError` with reason `GenerationConfigInvalid` for values no request may have.
    """
    path = files.path / "generation_config.json"
    if mode == "vllm" or files.is_gguf or not path.is_file():
        return SamplingDefaults()
    config = read_json_object(path, "GenerationConfigInvalid")
    values = {
        field: _number(path, key, config[key])
        for key, field in _FIELD_BY_KEY.items()
        if config.get(key) is not None
    }
    try:
        SamplingParams(**values)
    except InvalidRequest as error:
        raise _invalid(f"{path}: {error}") from error
    if values:
        logger.info(
            "default sampling from generation_config.json: %s",
            ", ".join(f"{field} {value:g}" for field, value in values.items()),
        )
    return SamplingDefaults(**values)


def _number(path: Path, key: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(f"{path}: {key} is {value!r}, not a number")
    if _FIELD_BY_KEY[key] in _INTEGERS and not isinstance(value, int):
        raise _invalid(f"{path}: {key} is {value!r}, not an integer")
    return value


def _invalid(message: str) -> StartupError:
    return StartupError(message, reason="GenerationConfigInvalid")
