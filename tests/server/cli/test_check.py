"""`refectory serve --check`: yes in a line, or no in a line, without torch and without weights."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from refectory_server.cli.main import main
from refectory_server.testing.sentencepiece_tokenizer import sentencepiece_backend
from refectory_server.testing.tiny_llama import make_tiny_llama

WITHOUT_TORCH = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "safetensors", "transformers", "refectory_kernels"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
from refectory_server.cli.main import main
main(sys.argv[1:], standalone_mode=True)
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    backend = sentencepiece_backend()
    make_tiny_llama(tmp_path, max_shard_size="100KB", vocab_size=backend.get_vocab_size())
    backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def check(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["serve", "--check", *args])
    return result.exit_code, result.output


def test_a_good_model_in_a_process_without_torch(tiny: Path) -> None:
    command = [sys.executable, "-P", "-W", "error", "-c", WITHOUT_TORCH, "serve", "--check"]
    done = subprocess.run(
        [*command, str(tiny), "--max-model-len=64", "--served-model-name=tiny"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "ok: tiny: LlamaForCausalLM, 30 tensors, max_model_len 64, no chat template\n"
    )


def test_the_embedded_model() -> None:
    assert check() == (
        0,
        "ok: smollm2-135m: LlamaForCausalLM, 272 tensors, max_model_len 8192, a chat template\n",
    )


def test_a_simulated_model() -> None:
    code, output = check("--simulate=instant")
    assert code == 0
    assert output.startswith("ok: instant: simulated, ")


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def a_shard(folder: Path) -> Path:
    return sorted(folder.glob("model-*.safetensors"))[1]


def cut(folder: Path) -> None:
    data = a_shard(folder).read_bytes()
    a_shard(folder).write_bytes(data[:-1])


def garble(folder: Path) -> None:
    data = a_shard(folder).read_bytes()
    a_shard(folder).write_bytes(data[:8] + b"!" + data[9:])


def lengthen_header(folder: Path) -> None:
    data = a_shard(folder).read_bytes()
    a_shard(folder).write_bytes(struct.pack("<Q", 10**12) + data[8:])


def make_integers(folder: Path) -> None:
    tensors = load_file(a_shard(folder))
    name = sorted(tensors)[0]
    save_file({**tensors, name: tensors[name].to(torch.int32)}, a_shard(folder))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: change_config(path, num_hidden_layers=4), "lacks the tensors model.layers.3"),
        (lambda path: change_config(path, hidden_size=24), "has the shape"),
        (lambda path: change_config(path, architectures=["Mamba9"]), "Mamba9"),
        (lambda path: a_shard(path).unlink(), "which is not there"),
        (lambda path: (path / "tokenizer.json").unlink(), "has no tokenizer.json"),
        (lambda path: (path / "config.json").unlink(), "has no config.json"),
        (cut, "it ends at byte"),
        (garble, "in its header"),
        (lengthen_header, "its header has 1000000000000 bytes"),
        (make_integers, "is I32, not a float type"),
    ],
)
def test_a_damaged_model_is_one_line(tiny: Path, damage: Callable[[Path], None], said: str) -> None:
    damage(tiny)
    code, output = check(str(tiny))
    assert code == 1
    [line] = output.splitlines()
    assert line.startswith("refectory: ")
    assert said in line


def test_flags_are_checked(tiny: Path, tmp_path: Path) -> None:
    code, output = check(str(tiny), "--max-model-len=257")
    assert (code, output) == (
        1,
        "refectory: --max-model-len is 257; the model allows [2, 256]\n",
    )
    code, output = check(str(tiny), "--max-model-len=1")
    assert code == 2
    assert "--max-model-len is 1; allowed is [2, " in output
    assert check(str(tiny), "--max-model-len=2")[0] == 0
    code, output = check(str(tiny), "--api-key-file=/nowhere")
    assert code == 1
    assert "--api-key-file /nowhere cannot be read" in output
    code, output = check(str(tiny), "--chat-template=/nowhere")
    assert code == 1
    assert "--chat-template is /nowhere" in output
    assert check("--port=70000")[0] == 2


@pytest.mark.parametrize(
    ("level", "code", "said"),
    [
        ("foo", 1, "refectory: REFECTORY_CPU_LEVEL is 'foo'; allowed here: "),
        ("torch", 0, "ok: "),
        ("", 0, "ok: "),
    ],
)
def test_the_processors_level_is_checked(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, level: str, code: int, said: str
) -> None:
    monkeypatch.setenv("REFECTORY_CPU_LEVEL", level)
    exit_code, output = check(str(tiny))
    assert (exit_code, output[: len(said)]) == (code, said)


def test_a_profile_is_checked(tmp_path: Path) -> None:
    code, output = check("--simulate=nonsense")
    assert code == 1
    assert output.startswith("refectory: no simulation profile nonsense")
