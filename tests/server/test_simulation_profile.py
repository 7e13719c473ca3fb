"""Simulation profiles: the shipped ones load, wrong ones are told in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from refectory_server.config import SimulatorConfig
from refectory_server.errors import StartupError
from refectory_server.simulation_profile import Faults, load_profile, shipped_profiles

GOOD = """
description: a test
model: m
num_blocks: 8
max_model_len: 128
kv_bytes_per_token: 1
step_seconds: {fixed: 0.001}
"""


def test_three_profiles_are_shipped_and_named_in_the_help() -> None:
    assert shipped_profiles() == ["h100-llama-8b", "instant", "l4-llama-8b"]
    help_text = SimulatorConfig.__dataclass_fields__["simulate"].metadata["help"]
    for name in shipped_profiles():
        assert name in help_text
        assert load_profile(name).num_blocks > 0


def test_a_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(GOOD)
    profile = load_profile(str(path))
    assert (profile.model, profile.num_blocks, profile.step_seconds.fixed) == ("m", 8, 0.001)
    assert (profile.load_seconds, profile.mean_output_tokens, profile.tokenizer) == (0, 0, None)
    assert profile.faults == Faults()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("num_blocks: 8", ""), "missing required field `num_blocks`"),
        (GOOD.replace("num_blocks: 8", "num_blocks: 0"), "`int` >= 1 - at `$.num_blocks`"),
        (GOOD.replace("len: 128", "len: 1"), "`int` >= 2 - at `$.max_model_len`"),
        (GOOD.replace("fixed: 0.001", "fixed: -1"), ">= 0.0 - at `$.step_seconds.fixed`"),
        (GOOD.replace("fixed: 0.001", "fixde: 1"), "unknown field `fixde`"),
        (GOOD + "faults: {crash_after_requests: soon}\n", "at `$.faults.crash_after_requests`"),
        ("", "Expected `object`, got `null`"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_wrong_profile_is_one_line_that_names_file_and_field(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(text)
    with pytest.raises(StartupError) as error:
        load_profile(str(path))
    assert str(path) in str(error.value)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_name_lists_the_shipped_ones() -> None:
    with pytest.raises(StartupError, match="h100-llama-8b, instant, l4-llama-8b"):
        load_profile("h200")


def test_the_page_says_how_long_a_profile_pretends_to_load() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
    for name in shipped_profiles():
        [row] = [line for line in page.splitlines() if line.startswith(f"| `{name}` ")]
        seconds = load_profile(name).load_seconds
        assert (f"pretends to load for {seconds:g} s" in row) == (seconds > 0)
