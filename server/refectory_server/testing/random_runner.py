"""`load_random_runner`: the native runner over a `RandomDecoder`, without torch or a checkpoint."""

from __future__ import annotations

from refectory_kernels.cpu_level import CpuLevel
from refectory_server.runner.interface import RunnerFacts
from refectory_server.runner.native_model_runner import NativeModelRunner
from refectory_server.testing.random_decoder import RandomDecoder


def load_random_runner(
    model: RandomDecoder, level: CpuLevel, *, num_threads: int = 1
) -> NativeModelRunner:
    shape = model.shape
    facts = RunnerFacts(
        num_blocks=shape.num_blocks,
        block_size=shape.block_size,
        max_model_len=shape.num_positions,
        vocab_size=shape.vocab_size,
        eos_token_ids=(2,),
        dtype=shape.element.name.lower(),
        kv_bytes_per_token=0,
        description=f"random weights, native {level}, {num_threads} threads",
    )
    return NativeModelRunner(model.load(level, num_threads), facts)
