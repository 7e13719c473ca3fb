"""transformers' `generate` in bfloat16 over one static batch: its prompts are equally long."""

from __future__ import annotations

from side_by_side.protocol import Engine, Settings, run_engine


class TransformersStatic:
    def __init__(self, settings: Settings) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(settings.num_threads)
        self._model = AutoModelForCausalLM.from_pretrained(
            settings.model, dtype=torch.bfloat16
        ).eval()
        self._model.generation_config.eos_token_id = None  # goes on past it, as the others do

    def generate(
        self, prompts: list[list[int]], num_tokens: int
    ) -> tuple[int, list[list[int]] | None]:
        import torch

        ids = torch.tensor(prompts)
        generated = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        output_ids: list[list[int]] = generated[:, ids.shape[1] :].tolist()
        return sum(map(len, output_ids)), output_ids


def load(settings: Settings) -> Engine:
    return TransformersStatic(settings)


if __name__ == "__main__":
    run_engine(load, ["transformers", "torch"])
