"""llama.cpp through its C API: all prompts in one context, in the manner of its `batched-bench`.

Greedy tokens are numpy's argmax over its logits.
"""

from __future__ import annotations

from typing import Any

from side_by_side.protocol import Engine, Settings, run_engine

MAX_BATCH_TOKENS, MAX_MICRO_BATCH_TOKENS = 2048, 512
"""llama.cpp's own defaults."""
CONTEXT_STEP = 256
"""A sequence's share of the context is a multiple of this."""

Entry = tuple[int, int, int, bool]
"""Token id, position, sequence, whether its logits are wanted."""


class LlamaCpp:
    def __init__(self, settings: Settings) -> None:
        import llama_cpp

        self._api: Any = llama_cpp
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            settings.model.encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {settings.model}")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self._model)
        )
        params = llama_cpp.llama_context_default_params()
        params.n_seq_max = settings.max_num_prompts
        share = -(-settings.max_len // CONTEXT_STEP) * CONTEXT_STEP
        params.n_ctx = settings.max_num_prompts * share
        params.n_batch, params.n_ubatch = MAX_BATCH_TOKENS, MAX_MICRO_BATCH_TOKENS
        params.n_threads = params.n_threads_batch = settings.num_threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp makes no context of {params.n_ctx} tokens")
        self._batch = llama_cpp.llama_batch_init(MAX_BATCH_TOKENS, 0, 1)

    def generate(
        self, prompts: list[list[int]], num_tokens: int
    ) -> tuple[int, list[list[int]] | None]:
        api = self._api
        api.llama_memory_clear(api.llama_get_memory(self._context), False)
        entries = [
            (token_id, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token_id in enumerate(prompt)
        ]
        output_ids = [[token_id] for token_id in self._decode(entries)]
        for _ in range(num_tokens - 1):
            entries = [
                (ids[-1], len(prompt) + len(ids) - 1, sequence, True)
                for sequence, (prompt, ids) in enumerate(zip(prompts, output_ids, strict=True))
            ]
            for ids, token_id in zip(output_ids, self._decode(entries), strict=True):
                ids.append(token_id)
        return sum(map(len, output_ids)), output_ids

    def _decode(self, entries: list[Entry]) -> list[int]:
        """The most probable next token of each entry whose logits are wanted, in their order."""
        chosen = []
        for start in range(0, len(entries), MAX_BATCH_TOKENS):
            chosen += self._decode_batch(entries[start : start + MAX_BATCH_TOKENS])
        return chosen

    def _decode_batch(self, entries: list[Entry]) -> list[int]:
        import numpy as np

        batch = self._batch
        batch.n_tokens = len(entries)
        for i, (token_id, position, sequence, is_wanted) in enumerate(entries):
            batch.token[i], batch.pos[i] = token_id, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = is_wanted
        if status := self._api.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {status}")
        return [
            int(np.ctypeslib.as_array(self._logits(i), (self._vocab_size,)).argmax())
            for i, entry in enumerate(entries)
            if entry[3]
        ]

    def _logits(self, index: int) -> Any:
        return self._api.llama_get_logits_ith(self._context, index)


def load(settings: Settings) -> Engine:
    return LlamaCpp(settings)


if __name__ == "__main__":
    run_engine(load, ["llama-cpp-python"])
