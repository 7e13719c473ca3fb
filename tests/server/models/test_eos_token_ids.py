"""Where the model's end tokens are read from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refectory_server.errors import StartupError
from refectory_server.models.hf_config import read_eos_token_ids, read_hf_config
from refectory_server.models.source import ModelFiles


@pytest.mark.parametrize(
    ("config", "generation_config", "expected"),
    [
        ({"eos_token_id": 2}, None, (2,)),
        ({"eos_token_id": [7, 2, 7]}, None, (7, 2)),
        ({"eos_token_id": 2}, {"eos_token_id": [128001, 128009]}, (128001, 128009)),
        ({"eos_token_id": 2}, {"eos_token_id": 0}, (0,)),
        ({"eos_token_id": 2}, {"temperature": 0.6}, (2,)),
        ({"eos_token_id": None}, None, ()),
    ],
)
def test_generation_config_comes_first(
    tmp_path: Path,
    config: dict[str, Any],
    generation_config: dict[str, Any] | None,
    expected: tuple[int, ...],
) -> None:
    if generation_config is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation_config))

    assert read_eos_token_ids(ModelFiles(tmp_path, "tiny"), config) == expected


@pytest.mark.parametrize("value", ["</s>", True, -1, 2**31, 1.0])
def test_nonsense_is_named(tmp_path: Path, value: object) -> None:
    with pytest.raises(StartupError) as caught:
        read_eos_token_ids(ModelFiles(tmp_path, "tiny"), {"eos_token_id": value})
    assert str(caught.value) == (
        f"eos_token_id of tiny is {value}; allowed is a token id or a list of them"
    )


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000])
def test_broken_config_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)

    with pytest.raises(StartupError) as caught:
        read_hf_config(ModelFiles(tmp_path, "tiny"))
    assert caught.value.reason == "ModelInvalid"
    assert str(path) in str(caught.value)
