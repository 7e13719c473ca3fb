"""Ours in process: `LLM`, so the scheduler and the sampler are part of it."""

from __future__ import annotations

from side_by_side.protocol import Engine, Settings, run_engine


class Refectory:
    def __init__(self, settings: Settings) -> None:
        from refectory_server import LLM

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
        from refectory_server import SamplingParams

        results = self._llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True),
            use_tqdm=False,
        )
        output_ids = [result.outputs[0].token_ids for result in results]
        return sum(map(len, output_ids)), output_ids


def load(settings: Settings) -> Engine:
    return Refectory(settings)


if __name__ == "__main__":
    run_engine(load, ["refectory", "torch"])
