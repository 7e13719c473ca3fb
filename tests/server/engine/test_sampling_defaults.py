"""`load_sampling_defaults`: which keys of generation_config.json count."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from refectory_server.config import EMBEDDED_MODEL
from refectory_server.engine.sampling_defaults import SamplingDefaults, load_sampling_defaults
from refectory_server.errors import StartupError
from refectory_server.models.source import ModelFiles, resolve_model


def model_with(path: Path, config: Any) -> ModelFiles:
    (path / "generation_config.json").write_text(
        config if isinstance(config, str) else json.dumps(config)
    )
    return ModelFiles(path, "m")


def test_the_keys_that_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = model_with(
        tmp_path,
        {
            "temperature": 0.6,
            "top_p": 0.95,
            "top_k": 20,
            "min_p": 0,
            "max_new_tokens": 2048,
            "do_sample": False,
            "repetition_penalty": 1.1,
            "eos_token_id": [1, 2],
        },
    )
    with caplog.at_level(logging.INFO):
        defaults = load_sampling_defaults(files, "auto")
    assert defaults == SamplingDefaults(
        temperature=0.6, top_p=0.95, top_k=20, min_p=0, repetition_penalty=1.1, max_tokens=2048
    )
    assert caplog.messages == [
        "default sampling from generation_config.json: "
        "temperature 0.6, top_p 0.95, top_k 20, min_p 0, repetition_penalty 1.1, max_tokens 2048"
    ]


def test_what_the_file_leaves_out_has_no_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = model_with(tmp_path, {"temperature": None, "do_sample": True})
    with caplog.at_level(logging.INFO):
        assert load_sampling_defaults(files, "auto") == SamplingDefaults()
    assert caplog.messages == []


def test_the_file_can_be_ignored(tmp_path: Path) -> None:
    files = model_with(tmp_path, {"temperature": 0.6})
    assert load_sampling_defaults(files, "vllm") == SamplingDefaults()


def test_models_without_the_file_have_no_defaults(tmp_path: Path) -> None:
    assert load_sampling_defaults(ModelFiles(tmp_path, "m"), "auto") == SamplingDefaults()
    assert load_sampling_defaults(resolve_model(EMBEDDED_MODEL), "auto") == SamplingDefaults()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "holds a list, not an object"),
        ("[" * 100_000, "is not valid JSON"),
        ({"temperature": 10**400}, "temperature is 1000"),
        ({"temperature": math.nan}, r"temperature is nan; allowed is \[0, 2\]"),
        ({"top_p": math.inf}, r"top_p is inf; allowed is \(0, 1\]"),
        ({"temperature": 3.0}, r"temperature is 3.0; allowed is \[0, 2\]"),
        ({"temperature": "warm"}, "temperature is 'warm', not a number"),
        ({"top_k": True}, "top_k is True, not a number"),
        ({"top_k": 1.5}, "top_k is 1.5, not an integer"),
        ({"max_new_tokens": 0}, r"max_tokens is 0; allowed is \[1, "),
    ],
)
def test_a_broken_file_stops_the_start(config: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=f"generation_config.json:? {message}") as caught:
        load_sampling_defaults(model_with(tmp_path, config), "auto")
    assert caught.value.reason == "GenerationConfigInvalid"


def test_merging_prefers_what_was_asked() -> None:
    defaults = SamplingDefaults(temperature=0.6, top_k=20)
    assert defaults.merged({"temperature": 0.0, "top_k": None, "seed": 1}) == {
        "temperature": 0.0,
        "top_k": 20,
        "seed": 1,
    }
