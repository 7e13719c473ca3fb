"""Greedy ids of every family equal transformers' generate, whoever computes, however the core cuts
the work up.

The models are tiny with random weights; the prompts are longer than the sliding windows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from refectory_kernels.cpu_level import CpuLevel, available_levels
from refectory_server.runner.interface import ModelRunner
from refectory_server.testing.stepped_engine import SteppedEngine
from refectory_server.testing.tiny_llama import TinyPair
from refectory_server.testing.tiny_models import TINY_CONFIGS, make_tiny_model

NUM_TOKENS = 20
LONG = [(7 * i * i + 3 * i + 5) % 128 + 3 for i in range(70)]
PROMPTS = [[5], LONG[:31], LONG, [*LONG[:48], 9, 77, 31]]
NAMES = [name for name in TINY_CONFIGS if name != "gemma3 with caps"]
"""transformers' Gemma 3 does not apply the attention cap that its config names."""
CLEAR = 3e-4
"""The two best logits are further apart at every token: no rounding chooses between them."""


@dataclass(frozen=True)
class Family:
    pair: TinyPair
    expected: list[list[int]]
    """transformers' output ids for each of `PROMPTS`, alone."""

    def assert_equal(self, engine: SteppedEngine) -> None:
        assert engine.generate(PROMPTS, [NUM_TOKENS] * len(PROMPTS)) == self.expected


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small are computed faster by one thread than shared out among several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=NAMES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    folder: Path = tmp_path_factory.mktemp("family")
    config = copy.deepcopy(TINY_CONFIGS[request.param])
    config.eos_token_id = None  # every answer has its full length
    pair = TinyPair(folder, make_tiny_model(folder, config))
    return Family(pair, [generate(pair, prompt) for prompt in PROMPTS])


@pytest.fixture(params=[None, *CpuLevel], ids=lambda level: level or "torch")
def runner(request: pytest.FixtureRequest, family: Family) -> ModelRunner:
    level: CpuLevel | None = request.param
    if level is not None and level not in available_levels():
        pytest.skip(f"no native library here, or a processor without {level}")
    return family.pair.load(level)


def generate(pair: TinyPair, prompt: list[int]) -> list[int]:
    output = pair.reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=NUM_TOKENS,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    for logits in output.logits:
        first, second = logits[0].topk(2).values.tolist()
        assert first - second > CLEAR
    token_ids: list[int] = output.sequences[0, len(prompt) :].tolist()
    return token_ids


def test_the_answers_differ(family: Family) -> None:
    assert len({tuple(ids) for ids in family.expected}) == len(PROMPTS)
    assert len({token_id for ids in family.expected for token_id in ids}) > 5


@pytest.mark.parametrize("chunk", [4, 19, 2048])
def test_in_chunks(family: Family, runner: ModelRunner, chunk: int) -> None:
    family.assert_equal(SteppedEngine(runner, chunk=chunk))


def test_again_from_the_prefix_cache(family: Family, runner: ModelRunner) -> None:
    engine = SteppedEngine(runner, chunk=32)
    family.assert_equal(engine)
    num_cold = engine.num_cached_tokens
    family.assert_equal(engine)

    block_size = runner.facts.block_size
    num_reusable = sum((len(prompt) - 1) // block_size * block_size for prompt in PROMPTS)
    assert engine.num_cached_tokens - num_cold >= num_reusable


def test_in_a_pool_so_small_that_requests_are_preempted(
    family: Family, runner: ModelRunner
) -> None:
    num_prompt_blocks = sum(-(-len(prompt) // runner.facts.block_size) for prompt in PROMPTS)
    # Admission reserves prompts, so it is the outputs that must not fit.
    engine = SteppedEngine(runner, num_blocks=num_prompt_blocks + 2)

    family.assert_equal(engine)

    assert engine.scheduler.stats().num_preemptions > 0
