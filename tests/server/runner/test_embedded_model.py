"""The model that is served by default, read from its quantised file.

The expected numbers were recorded from transformers 5.24, which loaded the same file by its own
GGUF reader in float32.
"""

from __future__ import annotations

import pytest

from refectory_server.config import CacheConfig, ModelConfig, ServerConfig
from refectory_server.runner.interface import ModelRunner
from refectory_server.runner.load import load_runner
from refectory_server.runner.step_time import MAX_STEP_S, MIN_STEP_S
from refectory_server.testing.step_driver import StepDriver

# "Write a short story about a lighthouse." in the model's chat template
PROMPT = [1, 4093, 198, 19161, 253, 1890, 1977, 563, 253, 33059, 30, 2, 198, 1, 520, 9531, 198]
# "The sun had set on a stormy night, casting a dappled gloom over the crumbling lighthouse ..."
# fmt: off
ANSWER = [
    504, 2388, 761, 932, 335, 253, 43471, 3163, 28, 17462, 253, 287, 1207, 1007, 1074, 6364, 690,
    260, 1650, 20987, 33059, 335, 260, 4051, 282, 260, 6125, 15911, 30, 378, 2139, 282, 935,
]
# fmt: on
# "The capital of France is"
BARE_PROMPT = [504, 3575, 282, 4649, 314]


@pytest.fixture(scope="module")
def phases() -> list[str]:
    return []


@pytest.fixture(scope="module")
def runner(phases: list[str]) -> ModelRunner:
    def report(phase: str, progress: float) -> None:
        assert 0.0 <= progress <= 1.0
        if phase not in phases:
            phases.append(phase)

    return load_runner(
        ServerConfig(
            model=ModelConfig(dtype="float32"), cache=CacheConfig(num_gpu_blocks_override=64)
        ),
        report,
    )


def test_start_up_phases_in_order(runner: ModelRunner, phases: list[str]) -> None:
    assert phases == [
        "import_torch",
        "resolve_model",
        "load_weights",
        "size_kv_cache",
        "warm_up",
    ]


def test_facts(runner: ModelRunner) -> None:
    facts = runner.facts

    assert (facts.num_blocks, facts.block_size) == (64, 16)
    assert facts.max_model_len == 63 * 16  # one block is the watermark's
    assert facts.vocab_size == 49152
    assert facts.eos_token_ids == (2,)
    assert facts.dtype == "float32"
    assert facts.kv_bytes_per_token == 30 * 2 * 3 * 64 * 4
    # Only native steps compute the same however tokens are grouped.
    if facts.description.startswith("native"):
        assert facts.step_s is not None
        assert MIN_STEP_S <= facts.step_s <= MAX_STEP_S
    else:
        assert facts.step_s is None


def test_greedy_answer_equals_transformers(runner: ModelRunner) -> None:
    driver = StepDriver(runner)
    driver.add("chat", PROMPT)
    driver.add("bare", BARE_PROMPT)

    outputs = driver.generate(len(ANSWER), chunk=11)

    assert outputs["chat"] == ANSWER
    assert outputs["bare"][:2] == [7042, 30]  # " Paris."
