"""Time of choosing one row's token, native and by the torch reference.

    python kernels/benchmarks/bench_sampling.py [--vocab-sizes 49152 262144] [--num-repeats 30]

Logits fall off with the rank of a token as a language model's do (Zipf, and noise). Prints medians
in microseconds a row of one thread's own time, so that a shared machine shows little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from refectory_kernels.cpu_level import available_levels
from refectory_kernels.cpu_sampling import SamplingRow, SamplingRows, sample_packed
from refectory_server.runner import sampler
from refectory_server.runner.logprobs import token_logprobs
from refectory_server.sampling_params import SamplingParams

NUM_ROWS = 8
NUM_PENALISED = 500
NUM_REFERENCE_REPEATS = 3
SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "temperature": SamplingParams(),
    "top_k 50": SamplingParams(top_k=50),
    "top_p 0.9": SamplingParams(top_p=0.9),
    "top_k 50, top_p 0.9": SamplingParams(top_k=50, top_p=0.9),
    "min_p 0.05": SamplingParams(min_p=0.05),
    f"penalties, {NUM_PENALISED} tokens": SamplingParams(temperature=0, frequency_penalty=0.5),
    "greedy, 5 logprobs": SamplingParams(temperature=0, logprobs=5),
}


def make_logits(vocab_size: int) -> npt.NDArray[np.float32]:
    """[NUM_ROWS, vocab_size]"""
    rng = np.random.default_rng(0)
    ranks = rng.permuted(np.tile(np.arange(1, vocab_size + 1), (NUM_ROWS, 1)), axis=1)
    noise = rng.standard_normal((NUM_ROWS, vocab_size)) * 2
    return np.asarray(noise - 1.3 * np.log(ranks), np.float32)


def median_us(run: Callable[[], object], num_repeats: int) -> float:
    """Of one row; `run` samples all of them."""
    times = []
    for _ in range(num_repeats + 1):
        start = time.thread_time_ns()
        run()
        times.append((time.thread_time_ns() - start) / 1e3 / NUM_ROWS)
    return statistics.median(times[1:])


def native_rows(params: SamplingParams, penalised: npt.NDArray[np.int32]) -> list[SamplingRow]:
    count_ids = penalised if params.has_penalties else penalised[:0]
    return [
        SamplingRow(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            frequency_penalty=params.frequency_penalty,
            seed=seed,
            count_ids=count_ids,
            counts=np.ones(len(count_ids)),
            num_logprobs=params.logprobs,
        )
        for seed in range(NUM_ROWS)
    ]


def sample_by_reference(
    logits: torch.Tensor, params: SamplingParams, penalised: npt.NDArray[np.int32]
) -> None:
    if params.has_penalties:
        logits = logits.double()
        logits[:, penalised] -= params.frequency_penalty
    rows = [sampler.SamplingRow(params, seed, 0) for seed in range(NUM_ROWS)]
    token_ids = sampler.sample(logits, rows, sampler.best_tokens(logits))
    if params.logprobs is not None:
        token_logprobs(logits, token_ids, [params.logprobs] * NUM_ROWS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--vocab-sizes", type=int, nargs="+", default=[49_152, 262_144])
    parser.add_argument("--num-repeats", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(1)
    levels = available_levels()
    for vocab_size in args.vocab_sizes:
        logits = make_logits(vocab_size)
        tensor = torch.from_numpy(logits)
        penalised = np.arange(0, vocab_size, vocab_size // NUM_PENALISED, dtype=np.int32)
        print(f"{vocab_size} tokens, µs a row: {', '.join(levels)}, torch")
        for name, params in SETTINGS.items():
            rows = SamplingRows(native_rows(params, penalised), vocab_size)
            times = [
                median_us(partial(sample_packed, logits, rows, level), args.num_repeats)
                for level in levels
            ]
            reference = partial(sample_by_reference, tensor, params, penalised)
            times.append(median_us(reference, NUM_REFERENCE_REPEATS))
            print(f"  {name:22}" + "".join(f"{value:10.1f}" for value in times))


if __name__ == "__main__":
    main()
