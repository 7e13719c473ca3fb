"""GGUF files: the embedded model's numbers, and files that are cut off or foreign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from refectory_server.errors import StartupError
from refectory_server.models.checkpoint import GgufCheckpoint
from refectory_server.models.gguf_file import GgufFile
from refectory_server.models.hf_config import read_eos_token_ids, read_hf_config
from refectory_server.models.registry import read_decoder_spec
from refectory_server.models.source import ModelFiles, resolve_model


def write_gguf(path: Path, architecture: str = "llama") -> Path:
    """A small file of one layer, as gguf's own writer makes it."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(["a", "b", "c"])
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(1)
    writer.add_tensor("token_embd.weight", np.arange(96, dtype=np.float32).reshape(3, 32))
    halves = np.linspace(-1, 1, 128, dtype=np.float16).reshape(2, 64)
    writer.add_tensor("output.weight", halves)
    quantized = gguf.quants.quantize(
        np.linspace(-2, 2, 128, dtype=np.float32).reshape(4, 32), gguf.GGMLQuantizationType.Q8_0
    )
    writer.add_tensor("q.weight", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def error_of(path: Path) -> str:
    with pytest.raises(StartupError) as caught:
        GgufFile(path)
    assert caught.value.reason == "ModelInvalid"
    return str(caught.value)


def test_tensors_are_read_dequantised(tmp_path: Path) -> None:
    file = GgufFile(write_gguf(tmp_path / "a.gguf"))

    assert {name: tensor.shape for name, tensor in file.tensors.items()} == {
        "token_embd.weight": (3, 32),
        "output.weight": (2, 64),
        "q.weight": (4, 32),
    }
    embedding = file.read_tensor("token_embd.weight")
    assert np.array_equal(embedding, np.arange(96, dtype=np.float32).reshape(3, 32))
    halves = np.linspace(-1, 1, 128, dtype=np.float16).astype(np.float32).reshape(2, 64)
    assert np.array_equal(file.read_tensor("output.weight"), halves)
    exact = np.linspace(-2, 2, 128, dtype=np.float32).reshape(4, 32)
    assert np.abs(file.read_tensor("q.weight") - exact).max() <= 2 / 127 / 2 + 1e-3


@pytest.mark.parametrize(
    ("values", "described"),
    [
        (np.zeros((2, 32), np.int32), "I32 of the shape [2, 32]"),
        (np.zeros((2, 32), np.float64), "F64 of the shape [2, 32]"),
        (np.zeros((0, 32), np.float32), "F32 of the shape [0, 32]"),
    ],
)
def test_a_tensor_that_is_no_weight_is_named(tmp_path: Path, values: Any, described: str) -> None:
    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("odd.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(StartupError) as caught:
        GgufFile(path).read_tensor("odd.weight")
    assert str(caught.value) == (
        f"tensor odd.weight of {path} is {described}, which is no weight that can be dequantised"
    )


def test_a_query_matrix_without_heads_is_named_with_its_shape(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.attn_q.weight", np.ones((3, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    spec = read_decoder_spec(read_hf_config(ModelFiles(write_gguf(tmp_path / "m.gguf"), "m")))
    checkpoint = GgufCheckpoint(GgufFile(path), spec)
    tensor = checkpoint.read("model.layers.0.self_attn.q_proj.weight")
    assert tuple(tensor.shape) == (3, 32)


def test_config_of_a_small_file(tmp_path: Path) -> None:
    files = ModelFiles(write_gguf(tmp_path / "a.gguf"), "a")

    config = read_hf_config(files)

    assert config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 3,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "rms_norm_eps": float(np.float32(1e-5)),
        "rope_parameters": {"rope_theta": None, "rope_type": "default"},
        "max_position_embeddings": 64,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "eos_token_id": [2, 1],
    }
    assert read_eos_token_ids(files, config) == (2, 1)


def test_unknown_architecture(tmp_path: Path) -> None:
    files = ModelFiles(write_gguf(tmp_path / "a.gguf", "mamba"), "a")

    with pytest.raises(
        StartupError, match=r"the architecture mamba; supported in GGUF files: llama, qwen2, qwen3$"
    ) as caught:
        read_hf_config(files)
    assert caught.value.reason == "UnsupportedArchitecture"


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    whole = path.read_bytes()
    last_tensor = list(GgufFile(path).tensors.values())[-1]
    end = last_tensor.offset + last_tensor.num_bytes

    for size in [0, 3, *range(4, end, 7), end - 1]:
        path.write_bytes(whole[:size])
        message = error_of(path)
        assert str(path) in message
        assert "\n" not in message


def test_cut_tensor_data_names_the_tensor(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    tensor = GgufFile(path).tensors["q.weight"]
    end = tensor.offset + tensor.num_bytes
    path.write_bytes(path.read_bytes()[: end - 1])

    assert error_of(path) == (
        f"{path} is not a valid GGUF file: it ends at byte {end - 1}, "
        f"its tensor q.weight at byte {end}"
    )


def test_foreign_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))

    assert error_of(path).startswith(f"{path} is not a valid GGUF file: ")


def test_embedded_model_config() -> None:
    files = resolve_model("embedded://smollm2-135m")

    config = read_hf_config(files)

    assert (config["num_hidden_layers"], config["hidden_size"]) == (30, 576)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (9, 3)
    assert (config["vocab_size"], config["max_position_embeddings"]) == (49152, 8192)
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 100000.0}
    assert config["tie_word_embeddings"] is True
    assert read_eos_token_ids(files, config) == (2,)


def test_quantised_weights_are_computed_in_bfloat16() -> None:
    files = resolve_model("embedded://smollm2-135m")

    assert read_hf_config(files)["dtype"] == "bfloat16"
