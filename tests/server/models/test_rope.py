"""Frequencies of published models' rope settings equal transformers'."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from refectory_server.models.config_reader import ConfigReader
from refectory_server.models.rope import rope_frequencies, rope_tables
from refectory_server.models.rope_config import read_rope
from refectory_server.models.rope_spec import GivenScaling, RopeSpec, YarnScaling

LLAMA_3_1 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
QWEN_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
HEAD_DIM = 128
MAX_POSITION = 131_072


@pytest.mark.parametrize(
    ("scaling", "theta"),
    [
        (LLAMA_3_1, 500_000.0),
        (LLAMA_3_1 | {"factor": 32.0}, 500_000.0),
        ({"type": "linear", "factor": 8.0}, 1_000_000.0),
        (QWEN_YARN, 1_000_000.0),
        (QWEN_YARN | {"rope_type": "yarn", "truncate": False, "beta_fast": 20}, 10_000.0),
        (QWEN_YARN | {"beta_slow": 2.0, "attention_factor": 1.25}, 10_000.0),
        (QWEN_YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}, 10_000.0),
        ({"type": "yarn", "factor": 2.0}, 10_000.0),
    ],
    ids=str,
)
def test_frequencies_equal_transformers(scaling: dict[str, Any], theta: float) -> None:
    kind = scaling.get("rope_type", scaling.get("type"))
    rope = read_rope(
        ConfigReader(
            {
                "rope_scaling": scaling,
                "rope_theta": theta,
                "max_position_embeddings": MAX_POSITION,
            }
        )
    )

    frequencies = rope_frequencies(rope, HEAD_DIM)

    config = LlamaConfig(
        rope_parameters={"rope_theta": theta, **scaling, "rope_type": kind},
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_POSITION,
    )
    expected, attention_factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    if isinstance(rope.scaling, YarnScaling):
        assert rope.scaling.attention_factor == pytest.approx(attention_factor, rel=1e-12)
        cos, _ = rope_tables(rope, 1, HEAD_DIM)
        assert cos[0].tolist() == pytest.approx([attention_factor] * (HEAD_DIM // 2))


def test_given_factors_divide() -> None:
    frequencies = rope_frequencies(RopeSpec(10_000.0, GivenScaling((1.0, 4.0))), 4)

    assert frequencies.tolist() == pytest.approx([1.0, 0.01 / 4])
