"""OpenVINO GenAI's continuous batching; the variant is the inference precision, f32 or bf16."""

from __future__ import annotations

from side_by_side.protocol import Engine, Settings, run_engine

CACHE_GIB = 2


class OpenVinoGenAI:
    def __init__(self, settings: Settings) -> None:
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIB
        scheduler.max_num_seqs = settings.max_num_prompts
        scheduler.max_num_batched_tokens = 2048
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            settings.model,
            scheduler,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": settings.variant,
                "INFERENCE_NUM_THREADS": settings.num_threads,
            },
        )

    def generate(
        self, prompts: list[list[int]], num_tokens: int
    ) -> tuple[int, list[list[int]] | None]:
        import numpy as np
        import openvino
        import openvino_genai

        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.ignore_eos = True
        config.do_sample = False
        tensors = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = self._pipeline.generate(tensors, [config] * len(prompts))
        output_ids = [list(map(int, result.m_generation_ids[0])) for result in results]
        return sum(map(len, output_ids)), output_ids


def load(settings: Settings) -> Engine:
    return OpenVinoGenAI(settings)


if __name__ == "__main__":
    run_engine(load, ["openvino-genai", "openvino"])
