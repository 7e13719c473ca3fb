"""Greedy ids of the embedded model in float32 equal transformers' own, however we batch.

transformers loads the same GGUF file by its own code and generates each prompt alone. Where its
two best logits are nearer than `TIE`, either may win by rounding: there the comparison goes on
from transformers' choice (teacher forcing). Everywhere else the ids must be equal.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
import transformers

from refectory_kernels.cpu_decoder import CpuDecoder
from refectory_kernels.cpu_level import CpuLevel, available_levels
from refectory_server.config import ModelConfig, ServerConfig
from refectory_server.models.native_decoder import build_native_decoder
from refectory_server.models.source import ModelFiles, resolve_model
from refectory_server.models.weights import load_weights
from refectory_server.runner.interface import ModelRunner
from refectory_server.runner.load import load_runner
from refectory_server.runner.opened_model import open_model
from refectory_server.testing.decoder_sequences import DecoderSequences
from refectory_server.testing.stepped_engine import SteppedEngine
from refectory_server.tokenizer.load import load_chat_template, load_tokenizer

SEED = 20_240_613
NUM_PROMPTS = 20
NUM_TOKENS = 12
TIE = 0.001
BFLOAT16_MARGIN = 0.15
"""Where float32's two best logits are further apart, bfloat16 chooses the same token."""
TEXT = (
    "the river house a green under why seven count list bread write poem about winter morning "
    "explain how engines work and light falls between old trees Paris number code python "
    "function return value ünïcode naïve 12 2048 3.14 what who where ? ! , . ( ) \n"
)
WORDS = TEXT.split(" ")


@dataclass(frozen=True)
class Reference:
    """One prompt and what transformers makes of it."""

    prompt: list[int]
    tokens: list[int]
    margins: list[float]
    """Distance of the two best logits at each token."""


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return resolve_model("embedded://smollm2-135m")


@pytest.fixture(scope="module")
def prompts(files: ModelFiles) -> list[list[int]]:
    """Chat prompts of 5 to 900 tokens of user text, each length a fixed factor above the last."""
    print(f"prompts drawn from seed {SEED}")
    rng = random.Random(SEED)
    tokenizer = load_tokenizer(files)
    template = load_chat_template(files, None, tokenizer.special_tokens)
    assert template is not None
    drawn = []
    for i in range(NUM_PROMPTS):
        num_wanted = round(5 * (900 / 5) ** (i / (NUM_PROMPTS - 1)))
        text = ""
        while len(tokenizer.encode(text)) < num_wanted:
            text += " " + rng.choice(WORDS)
        messages = [{"role": "user", "content": text.strip()}]
        drawn.append(tokenizer.encode(template.render(messages), add_special_tokens=False))
    rng.shuffle(drawn)
    return drawn


@pytest.fixture(scope="module")
def references(files: ModelFiles, prompts: list[list[int]]) -> list[Reference]:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        files.path.parent, gguf_file=files.path.name, dtype=torch.float32
    ).eval()
    references = []
    for prompt in prompts:
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=NUM_TOKENS,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
        best = [torch.topk(logits[0].float(), 2).values for logits in output.logits]
        references.append(
            Reference(
                prompt,
                output.sequences[0, len(prompt) :].tolist(),
                [float(top[0] - top[1]) for top in best],
            )
        )
    return references


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    return load_runner(ServerConfig(model=ModelConfig(dtype="float32")), lambda *_: None)


def assert_equal(engine: SteppedEngine, references: Sequence[Reference]) -> None:
    """Ids equal the references'; past a tie the rest is compared from transformers' choice."""
    starts = [0] * len(references)
    pending = list(range(len(references)))
    while pending:
        outputs = engine.generate(
            [references[i].prompt + references[i].tokens[: starts[i]] for i in pending],
            [len(references[i].tokens) - starts[i] for i in pending],
        )
        diverged = []
        for i, output in zip(pending, outputs, strict=True):
            wanted = references[i].tokens[starts[i] :]
            if output == wanted:
                continue
            at = next(
                k for k, pair in enumerate(zip(output, wanted, strict=False)) if len(set(pair)) == 2
            )
            margin = references[i].margins[starts[i] + at]
            assert margin < TIE, (i, starts[i] + at, margin, output, wanted)
            starts[i] += at + 1
            if starts[i] < len(references[i].tokens):
                diverged.append(i)
        pending = diverged


def test_all_at_once_then_again_from_the_prefix_cache(
    runner: ModelRunner, references: list[Reference]
) -> None:
    engine = SteppedEngine(runner)
    assert_equal(engine, references)
    num_cold = engine.num_cached_tokens
    assert_equal(engine, references)
    block_size = runner.facts.block_size
    num_reusable = sum((len(r.prompt) - 1) // block_size * block_size for r in references)
    assert engine.num_cached_tokens - num_cold >= num_reusable


@pytest.mark.parametrize("chunk", [16, 64])
def test_in_chunks(runner: ModelRunner, references: list[Reference], chunk: int) -> None:
    assert_equal(SteppedEngine(runner, chunk=chunk), references)


def test_in_a_pool_so_small_that_requests_are_preempted(
    runner: ModelRunner, references: list[Reference]
) -> None:
    # Admission reserves prompts, so it is the outputs that must not fit: short prompts whose
    # last block is nearly full, each of which grows by a block.
    short = [r for r in references if len(r.prompt) <= 400]
    block_size = runner.facts.block_size
    num_prompt_blocks = sum(-(-len(r.prompt) // block_size) for r in short)
    engine = SteppedEngine(runner, num_blocks=num_prompt_blocks + 2)
    assert_equal(engine, short)
    assert engine.scheduler.stats().num_preemptions > 0


def test_thirty_two_at_once_in_random_order(
    runner: ModelRunner, references: list[Reference]
) -> None:
    rng = random.Random(SEED)
    chosen = [rng.choice(references) for _ in range(32)]
    assert_equal(SteppedEngine(runner), chosen)


def test_one_at_a_time(runner: ModelRunner, references: list[Reference]) -> None:
    engine = SteppedEngine(runner, num_blocks=80)
    for reference in references[:5]:
        assert_equal(engine, [reference])


@pytest.mark.skipif(not available_levels(), reason="no native library, or no level of it runs here")
def test_bfloat16_chooses_the_same_wherever_float32_is_clear(references: list[Reference]) -> None:
    """Teacher forced: each token after transformers' own ones."""
    short = [r for r in references if len(r.prompt) <= 200]
    decoder = load_bfloat16(available_levels()[-1])
    sequences = DecoderSequences(decoder, [[*r.prompt, *r.tokens] for r in short])
    missed = []
    for i in range(NUM_TOKENS):
        logits = sequences.step({n: 1 if i else len(r.prompt) for n, r in enumerate(short)})
        missed += [r.margins[i] for n, r in enumerate(short) if logits[n].argmax() != r.tokens[i]]

    num_tokens = len(short) * NUM_TOKENS
    print(f"{num_tokens - len(missed)} of {num_tokens} agree; the others' margins: {missed}")
    assert num_tokens > 100
    assert max(missed, default=0.0) < BFLOAT16_MARGIN
    assert len(missed) <= num_tokens // 50


def load_bfloat16(level: CpuLevel) -> CpuDecoder:
    model = open_model("embedded://smollm2-135m")
    return build_native_decoder(
        model.spec,
        load_weights(model.files, model.spec, torch.bfloat16, lambda *_: None, model.gguf),
        num_blocks=200,
        block_size=16,
        max_model_len=512,
        max_tokens=2048,
        level=level,
        cpus=[None] * len(os.sched_getaffinity(0)),
    )
