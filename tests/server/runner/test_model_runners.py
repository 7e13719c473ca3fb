"""Greedy tokens equal transformers' own, whoever computes, however the work is cut up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from refectory_kernels.cpu_level import CpuLevel
from refectory_server.core.scheduler_output import SchedulerOutput
from refectory_server.runner.native_model_runner import NativeModelRunner
from refectory_server.runner.torch_model_runner import TorchModelRunner
from refectory_server.sampling_params import SamplingParams
from refectory_server.testing.step_driver import StepDriver
from refectory_server.testing.tiny_llama import TinyPair

Runner = TorchModelRunner | NativeModelRunner

NUM_OUTPUT = 24
PROMPTS = {
    "short": [5],
    "medium": [1, 17, 99, 4, 23, 64, 8, 8, 120],
    "long": [(7 * i * i + 3 * i) % 131 for i in range(61)],
}


@pytest.fixture(scope="module")
def runner(tiny_pair: TinyPair, level: CpuLevel | None) -> Runner:
    return tiny_pair.load(level)


@pytest.fixture(scope="module")
def expected(tiny_pair: TinyPair) -> dict[str, list[int]]:
    """transformers' greedy continuation, each prompt alone."""
    return {name: tiny_pair.greedy_ids(prompt, NUM_OUTPUT) for name, prompt in PROMPTS.items()}


def new_driver(runner: Runner, *names: str) -> StepDriver:
    """A driver on a runner that has forgotten everything."""
    runner.execute_model(SchedulerOutput(dropped_request_ids=(*PROMPTS, "fork", "twin")))
    driver = StepDriver(runner)
    for name in names:
        driver.add(name, PROMPTS[name])
    return driver


def test_the_three_prompts_have_different_answers(expected: dict[str, list[int]]) -> None:
    assert len({tuple(ids) for ids in expected.values()}) == 3
    assert all(len(set(ids)) > 5 for ids in expected.values())


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("chunk", [1, 3, 8, 17, 100])
def test_alone_in_chunks(
    runner: Runner, expected: dict[str, list[int]], name: str, chunk: int
) -> None:
    driver = new_driver(runner, name)

    assert driver.generate(NUM_OUTPUT, chunk=chunk) == {name: expected[name]}


@pytest.mark.parametrize("chunk", [5, 100])
def test_side_by_side(runner: Runner, expected: dict[str, list[int]], chunk: int) -> None:
    driver = new_driver(runner, *PROMPTS)

    assert driver.generate(NUM_OUTPUT, chunk=chunk) == expected


def test_prefill_and_decode_in_one_step(runner: Runner, expected: dict[str, list[int]]) -> None:
    driver = new_driver(runner, "medium", "long")
    driver.step({"medium": 9})

    output = driver.step({"long": 40, "medium": 1})

    # The chunk that does not reach the prompt's end samples nothing.
    assert output.sampled_token_ids == {"medium": expected["medium"][1]}
    assert driver.generate(NUM_OUTPUT) == {name: expected[name] for name in ("medium", "long")}


def test_preempted_request_goes_on_as_before(
    runner: Runner, expected: dict[str, list[int]]
) -> None:
    driver = new_driver(runner, *PROMPTS)
    driver.generate(10)

    driver.preempt("long")
    driver.generate(15, chunk=16)
    driver.preempt("medium")

    assert driver.generate(NUM_OUTPUT) == expected


def test_copied_blocks_hold_what_their_sources_held(
    runner: Runner, expected: dict[str, list[int]]
) -> None:
    driver = new_driver(runner, "long")
    driver.generate(4)
    driver.fork("fork", "long")

    driver.step({"fork": 1, "long": 1})
    driver.finish("long")

    assert driver.generate(NUM_OUTPUT) == {"fork": expected["long"]}


def test_dropped_requests_are_forgotten(runner: Runner) -> None:
    driver = new_driver(runner, *PROMPTS)
    driver.generate(2)
    assert len(runner._states) == 3

    for name in PROMPTS:
        driver.finish(name)
    output = driver.step({})

    assert output.sampled_token_ids == {}
    assert len(runner._states) == 0


def test_seeded_request_draws_the_same_tokens_in_any_company(runner: Runner) -> None:
    params = SamplingParams(temperature=0.9, top_p=0.95, top_k=40)
    alone = new_driver(runner)
    alone.add("twin", PROMPTS["medium"], params, seed=11)
    tokens = alone.generate(NUM_OUTPUT)["twin"]

    company = new_driver(runner, "short", "long")
    company.add("twin", PROMPTS["medium"], params, seed=11)
    company.add("fork", PROMPTS["medium"], params, seed=12)
    together = company.generate(NUM_OUTPUT, chunk=4)

    assert together["twin"] == tokens
    assert together["fork"] != tokens


def test_bad_logits_fail_one_request_only(
    tiny_pair: TinyPair, expected: dict[str, list[int]], level: CpuLevel | None, tmp_path: Path
) -> None:
    poisoned_token = 130
    assert all(poisoned_token not in prompt for prompt in PROMPTS.values())
    driver = StepDriver(tiny_pair.with_nan_token(tmp_path, poisoned_token).load(level))
    driver.add("medium", PROMPTS["medium"])
    driver.add("bad", [1, poisoned_token])

    output = driver.step({"bad": 2, "medium": 9})

    assert output.errors == {"bad": "the model's logits after token 2 are NaN or infinite"}
    assert output.sampled_token_ids == {"medium": expected["medium"][0]}


def test_facts(runner: Runner, level: CpuLevel | None) -> None:
    facts = runner.facts

    assert (facts.num_blocks, facts.max_model_len) == (200, 256)
    assert (facts.vocab_size, facts.eos_token_ids, facts.dtype) == (131, (2,), "float32")
    if level is None:
        assert (facts.block_size, facts.kv_bytes_per_token) == (8, 3 * 2 * 2 * 8 * 4)
        assert facts.description.startswith(f"torch {torch.__version__} on cpu, float32, ")
    else:
        # Heads of 8 dimensions take up 32.
        assert (facts.block_size, facts.kv_bytes_per_token) == (16, 3 * 2 * 2 * 32 * 4)
        assert facts.description.startswith(f"native {level} on cpu, float32, 1 thread ")


def test_warm_up_leaves_no_state(tiny_pair: TinyPair, level: CpuLevel | None) -> None:
    assert len(tiny_pair.load(level)._states) == 0


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"nobody": 1}, "request nobody is scheduled, but was never announced"),
        ({"short": 2}, "request short has 2 tokens, 1 of them computed; it cannot compute 2 more"),
    ],
)
def test_broken_steps_name_the_numbers(
    runner: Runner, counts: dict[str, int], message: str
) -> None:
    new_driver(runner, "short").step({"short": 1})

    with pytest.raises(RuntimeError, match=message):
        runner.execute_model(SchedulerOutput(num_scheduled_tokens=counts))


def test_bfloat16_follows_float32(tiny_pair: TinyPair, level: CpuLevel | None) -> None:
    """Teacher forced: the same choice wherever float32 has a clear one."""
    runner = tiny_pair.load(level, dtype="bfloat16")
    assert runner.facts.dtype == "bfloat16"
    assert runner.facts.kv_bytes_per_token == 3 * 2 * 2 * (8 if level is None else 32) * 2
    prompt = PROMPTS["long"]
    logits = tiny_pair.logits(prompt)
    best = logits.topk(2, dim=1)
    is_clear = best.values[:, 0] - best.values[:, 1] > 0.25 * logits.std()
    assert is_clear.sum() >= 20

    for length in (is_clear.nonzero().flatten() + 1).tolist():
        driver = StepDriver(runner)
        driver.add(f"first-{length}", prompt[:length])
        (token_id,) = driver.step({f"first-{length}": length}).sampled_token_ids.values()
        assert token_id == best.indices[length - 1, 0]
