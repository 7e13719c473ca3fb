"""`--config FILE`: the same options by the same names, below flags and environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from refectory_server.cli.config_file import config_file_option
from refectory_server.cli.options import GroupedCommand, config_options
from refectory_server.cli.vllm_flags import vllm_flag_options
from refectory_server.config import ModelConfig, SchedulerConfig

FILE = """
model: some-folder
max-num-seqs: 5
max_num_batched_tokens: 1k
served-model-name: [a, b]
watermark: 0.25
"""


def run(
    folder: Path, text: str, *args: str, env: dict[str, str] | None = None
) -> tuple[dict[str, Any], str]:
    """The values that a command with a model and scheduler options gets, and its output."""
    values: dict[str, Any] = {}

    @click.command(cls=GroupedCommand)
    @click.argument("model", required=False)
    @config_file_option
    @config_options(ModelConfig, "model")
    @config_options(SchedulerConfig, "scheduler")
    @vllm_flag_options
    @click.option("--check", "check_only", is_flag=True)
    def command(**given: Any) -> None:
        values.update(given)

    path = folder / "config.yaml"
    path.write_text(text)
    result = CliRunner().invoke(command, [f"--config={path}", *args], env=env)
    return values, result.output


def test_keys_are_flags_with_dashes_or_underscores(tmp_path: Path) -> None:
    values, _ = run(tmp_path, FILE)
    assert values["model"] == "some-folder"
    assert values["max_num_seqs"] == 5
    assert values["max_num_batched_tokens"] == 1000
    assert values["served_model_name"] == ("a", "b")
    assert values["watermark"] == 0.25


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    env = {"REFECTORY_MAX_NUM_SEQS": "7", "REFECTORY_WATERMARK": "0.5"}
    values, _ = run(tmp_path, FILE, "other-folder", "--watermark=0", env=env)
    assert values["model"] == "other-folder"
    assert values["max_num_seqs"] == 7
    assert values["watermark"] == 0


def test_one_value_for_a_repeatable_flag(tmp_path: Path) -> None:
    assert run(tmp_path, "served-model-name: a")[0]["served_model_name"] == ("a",)


def test_vllms_flags_have_its_names(tmp_path: Path) -> None:
    values, _ = run(tmp_path, "tensor-parallel-size: 1\nenforce_eager: true")
    assert values["vllm_tensor_parallel_size"] == 1
    assert values["vllm_enforce_eager"] is True


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, "# nothing")[0]["max_num_seqs"] == SchedulerConfig().max_num_seqs


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max-num-segs: 5", "no flag max-num-segs; did you mean max-num-seqs?"),
        ("config: other.yaml", "config cannot be set in a file"),
        ("check: true", "check cannot be set in a file, only on the command line"),
        ("check-only: true", "there is no flag check-only"),
        ("vllm-enforce-eager: true", "no flag vllm-enforce-eager; did you mean enforce-eager?"),
        ("max-num-seqs: many", "'many' is not a whole number"),
        ("max-num-seqs:", "max-num-seqs has no value"),
        ("max-num-seqs: [1, 2]", "max-num-seqs is a list; allowed is one value"),
        ("- max-num-seqs", "holds a list"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_wrong_file_is_told_by_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    values, output = run(tmp_path, text)
    assert values == {}
    assert said in " ".join(output.split())


def test_a_missing_file_is_told() -> None:
    @click.command()
    @config_file_option
    def command() -> None: ...

    result = CliRunner().invoke(command, ["--config=/nowhere.yaml"])
    assert result.exit_code == 2
    assert "cannot read /nowhere.yaml" in result.output
