"""Complete tables, and every way in which a checkpoint can be wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from refectory_server.errors import StartupError
from refectory_server.models.hf_config import read_hf_config
from refectory_server.models.registry import read_decoder_spec
from refectory_server.models.source import resolve_model
from refectory_server.models.tensor_shapes import expected_shapes
from refectory_server.models.weights import WeightTable, load_weights
from refectory_server.testing.tiny_llama import make_tiny_llama

K_PROJ = "model.layers.1.self_attn.k_proj.weight"


def load(folder: Path, dtype: torch.dtype = torch.float32) -> WeightTable:
    files = resolve_model(str(folder))
    spec = read_decoder_spec(read_hf_config(files))
    return load_weights(files, spec, dtype, lambda phase, progress: None)


def error_of(folder: Path) -> str:
    with pytest.raises(StartupError) as caught:
        load(folder)
    assert caught.value.reason == "ModelInvalid"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Make the tiny model in `folder`, then change its table of tensors."""
    make_tiny_llama(folder)
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
def test_table_has_every_tensor_in_the_wanted_dtype(tmp_path: Path, stored: torch.dtype) -> None:
    reference = make_tiny_llama(tmp_path, dtype=stored).state_dict()
    spec = read_decoder_spec(read_hf_config(resolve_model(str(tmp_path))))
    assert spec.checkpoint_dtype == str(stored).removeprefix("torch.")

    table = load(tmp_path, torch.bfloat16)

    assert {name: tuple(tensor.shape) for name, tensor in table.items()} == expected_shapes(spec)
    assert {tensor.dtype for tensor in table.values()} == {torch.bfloat16}
    assert all(torch.equal(table[name], reference[name].bfloat16()) for name in table)


def test_progress_runs_from_zero_to_one(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path)
    files = resolve_model(str(tmp_path))
    spec = read_decoder_spec(read_hf_config(files))
    seen: list[tuple[str, float]] = []

    load_weights(files, spec, torch.float32, lambda *call: seen.append(call))

    assert {phase for phase, _ in seen} == {"load_weights"}
    fractions = [fraction for _, fraction in seen]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)


def test_missing_tensor(tmp_path: Path) -> None:
    rewrite(tmp_path, lambda tensors: tensors.pop(K_PROJ))

    assert error_of(tmp_path) == f"{tmp_path} lacks the tensor {K_PROJ}"


def test_wrong_shape(tmp_path: Path) -> None:
    rewrite(tmp_path, lambda tensors: tensors.update({K_PROJ: torch.zeros(15, 48)}))

    assert error_of(tmp_path) == (
        f"tensor {K_PROJ} of {tmp_path} has the shape [15, 48]; the config asks for [16, 48]"
    )


def test_wrong_type(tmp_path: Path) -> None:
    zeros = torch.zeros(16, 48, dtype=torch.int8)
    rewrite(tmp_path, lambda tensors: tensors.update({K_PROJ: zeros}))

    assert error_of(tmp_path) == f"tensor {K_PROJ} of {tmp_path} is torch.int8, not a float type"


def test_unexpected_tensors(tmp_path: Path) -> None:
    extra = {f"model.layers.0.mlp.extra_{i}": torch.zeros(1) for i in range(7)}
    rewrite(tmp_path, lambda tensors: tensors.update(extra))

    names = ", ".join(f"model.layers.0.mlp.extra_{i}" for i in range(5))
    assert error_of(tmp_path) == (
        f"{tmp_path} has the tensors {names} and 2 more, which its config gives no place"
    )


def test_stored_rotary_frequencies_are_recomputed(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(tmp_path, lambda tensors: tensors.update({name: torch.zeros(4)}))

    assert name not in load(tmp_path)


def test_unused_lm_head_of_a_tied_model_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rewrite(tmp_path, lambda tensors: None)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))

    with caplog.at_level(logging.WARNING):
        table = load(tmp_path)

    assert "lm_head.weight" not in table
    assert caplog.messages == [f"{tmp_path} ties its embeddings; its lm_head.weight is not used"]


def test_truncated_safetensors(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()

    for size in (0, 5, 300, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert error_of(tmp_path).startswith(f"{path} is not a valid safetensors file: ")


def test_pickled_weights_are_never_loaded(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")

    assert error_of(tmp_path) == (
        f"{tmp_path} has its weights as pytorch_model.bin: pickled files can run code and are "
        "never loaded; convert the model to safetensors"
    )


def test_no_weights_at_all(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path)
    (tmp_path / "model.safetensors").unlink()

    assert error_of(tmp_path) == (
        f"{tmp_path} has neither model.safetensors nor model.safetensors.index.json"
    )


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ({}, "has no weight_map"),
        ({"weight_map": {"a": "gone.safetensors"}}, "names gone.safetensors, which is not there"),
        ({"weight_map": {"a": "x" * 300}}, f"names {'x' * 300}, which is not there"),
        (
            {"weight_map": {"a": "../x.safetensors"}},
            "names ../x.safetensors, a file outside its folder",
        ),
    ],
)
def test_broken_index(tmp_path: Path, index: dict[str, object], problem: str) -> None:
    make_tiny_llama(tmp_path)
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(index))

    assert error_of(tmp_path) == f"{path} {problem}"
