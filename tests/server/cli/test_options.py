"""The command line is the config's fields: names, types, ranges, environment, help."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import click
import pytest
from click.testing import CliRunner

from refectory_server.cli.main import main
from refectory_server.cli.options import GroupedCommand, SizeType, config_options
from refectory_server.config import (
    ApiConfig,
    CacheConfig,
    ConfigError,
    CpuConfig,
    ModelConfig,
    SchedulerConfig,
    SimulatorConfig,
    flag_name,
)


def parse(config_class: type, *args: str, env: dict[str, str] | None = None) -> Any:
    """The config object that the options of `config_class` make of `args`."""
    parsed: list[Any] = []

    @click.command(
        cls=GroupedCommand,
        context_settings={"token_normalize_func": lambda token: token.replace("_", "-")},
    )
    @config_options(config_class, "group")
    def command(**values: Any) -> None:
        parsed.append(config_class(**values))

    result = CliRunner().invoke(command, args, env=env, catch_exceptions=False)
    if result.exit_code != 0:
        raise click.UsageError(result.output)
    return parsed[0]


@pytest.mark.parametrize("config_class", [ModelConfig, CacheConfig, SchedulerConfig, ApiConfig])
def test_without_arguments_each_field_has_its_own_default(config_class: type) -> None:
    assert parse(config_class) == config_class()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("17", 17),
        ("32k", 32_000),
        ("32K", 32_768),
        ("2m", 2_000_000),
        ("2M", 2 * 1024**2),
        ("1G", 1024**3),
        ("4Gi", 4 * 1024**3),
        ("-1", -1),
    ],
)
def test_size_suffixes(text: str, value: int) -> None:
    assert SizeType().convert(text, None, None) == value


@pytest.mark.parametrize("text", ["", "k", "1.5k", "4x", "0x10", "1e3"])
def test_a_size_that_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a whole number"):
        SizeType().convert(text, None, None)


def test_dashes_and_underscores_are_the_same() -> None:
    dashed = parse(SchedulerConfig, "--max-num-seqs", "4", "--scheduling-policy=priority")
    underscored = parse(SchedulerConfig, "--max_num_seqs", "4", "--scheduling_policy=priority")
    assert dashed == underscored == SchedulerConfig(max_num_seqs=4, scheduling_policy="priority")


def test_every_switch_has_a_negative_twin() -> None:
    assert parse(CacheConfig, "--no-enable-prefix-caching").enable_prefix_caching is False
    assert parse(CacheConfig, "--enable-prefix-caching").enable_prefix_caching is True


def test_an_option_that_may_be_repeated() -> None:
    config = parse(ModelConfig, "--served-model-name", "a", "--served-model-name=b")
    assert config.served_model_name == ("a", "b")


def test_a_list_of_words_after_such_an_option_as_in_vllm() -> None:
    args = ["--served-model-name", "a", "b", "--seed", "3"]
    config = parse(ModelConfig, *args)
    assert config == ModelConfig(served_model_name=("a", "b"), seed=3)
    assert parse(ModelConfig, "--served_model_name", "a", "b").served_model_name == ("a", "b")
    assert parse(ApiConfig, "--api-key=a", "--api-key", "b", "c").api_key == ("a", "b", "c")


def test_choices_keep_their_type() -> None:
    assert parse(CacheConfig, "--block-size", "32").block_size == 32


def test_environment_variables_stand_in_for_flags_and_flags_win() -> None:
    env = {"REFECTORY_MAX_NUM_SEQS": "7", "REFECTORY_WATERMARK": "0.25"}
    assert parse(SchedulerConfig, env=env) == SchedulerConfig(max_num_seqs=7, watermark=0.25)
    assert parse(SchedulerConfig, "--max-num-seqs=9", env=env).max_num_seqs == 9


def test_an_unknown_flag_is_an_error_with_the_nearest_name() -> None:
    result = CliRunner().invoke(main, ["serve", "--max-num-seq", "4"])
    assert result.exit_code == 2
    assert "No such option '--max-num-seq'" in result.output
    assert "--max-num-seqs" in result.output


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ApiConfig(port=70000), "--port is 70000; allowed is [0, 65535]"),
        (lambda: CacheConfig(kv_cache_memory_bytes=0), "--kv-cache-memory-bytes is 0; allowed is"),
        (lambda: SchedulerConfig(watermark=0.6), "--watermark is 0.6; allowed is [0, 0.5]"),
        (lambda: SchedulerConfig(watermark=math.nan), "--watermark is nan; allowed is [0, 0.5]"),
        (
            lambda: ApiConfig(request_timeout=math.inf),
            f"--request-timeout is inf; allowed is [0.001, {2**63 - 1}]",
        ),
        (lambda: ModelConfig(seed=2**63), f"--seed is {2**63}; allowed is [0, {2**63 - 1}]"),
        (
            lambda: ModelConfig(served_model_name=("a", "\udcff")),
            "--served-model-name holds bytes that are no UTF-8 text",
        ),
        (lambda: ModelConfig(model="\udcff"), "--model holds bytes that are no UTF-8 text"),
        (lambda: ApiConfig(api_key=("\udcff",)), "--api-key holds bytes that are no UTF-8 text"),
        (lambda: ApiConfig(api_key=("k", "")), "--api-key has a key that is empty, or that begins"),
        (lambda: ApiConfig(api_key=("k ",)), "--api-key has a key that is empty, or that begins"),
        (
            lambda: SchedulerConfig(max_num_batched_tokens=64),
            "--max-num-batched-tokens is 64, less than --max-num-seqs 128",
        ),
    ],
)
def test_a_value_out_of_range_is_named_with_its_range(make: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert message in str(error.value)


def test_a_config_error_on_the_command_line_is_one_line_and_exit_code_2() -> None:
    result = CliRunner().invoke(main, ["serve", "--port", "70000"])
    assert result.exit_code == 2
    assert "--port is 70000; allowed is [0, 65535]" in result.output
    assert "Traceback" not in result.output


def test_a_number_of_thousands_of_digits_is_an_error_like_any_other() -> None:
    result = CliRunner().invoke(main, ["serve", "--port", "9" * 5000])
    assert result.exit_code == 2
    assert "is not a whole number such as 4096" in result.output


def test_help_lists_every_option_under_its_group() -> None:
    text = CliRunner().invoke(main, ["serve", "--help"]).output
    groups = (ModelConfig, SimulatorConfig, CpuConfig, CacheConfig, SchedulerConfig, ApiConfig)
    for config_class in groups:
        for field in dataclasses.fields(config_class):
            if field.name != "model":
                assert flag_name(field.name) in text
    assert [line for line in text.splitlines() if line.endswith("options:")] == [
        "general options:",
        "model options:",
        "simulator options:",
        "cpu options:",
        "cache options:",
        "scheduler options:",
        "api options:",
        "compatibility options:",
    ]


def test_help_of_one_group_shows_only_that_group() -> None:
    text = CliRunner().invoke(main, ["serve", "--help=cache"]).output
    assert "--block-size" in text
    assert "--max-num-seqs" not in text


def test_help_of_an_unknown_group_names_the_groups() -> None:
    result = CliRunner().invoke(main, ["serve", "--help=kv"])
    assert result.exit_code == 2
    groups = "general, model, simulator, cpu, cache, scheduler, api, compatibility, all"
    assert groups in result.output
