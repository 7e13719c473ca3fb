"""`SteppedEngine`: the real core with any runner, stepped by hand in the test's own thread."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from refectory_server.config import SchedulerConfig
from refectory_server.core.kv_cache_manager import KVCacheManager
from refectory_server.core.scheduler import Scheduler
from refectory_server.engine.engine_core import EngineCore
from refectory_server.engine.messages import AddRequest
from refectory_server.runner.interface import ModelRunner
from refectory_server.sampling_params import SamplingParams


class SteppedEngine:
    """A scheduler and a KV cache of their own; `chunk` is the token budget of a step."""

    # A runner may be shared by several engines, so ids are never used twice.
    _numbers = itertools.count()

    def __init__(
        self, runner: ModelRunner, *, num_blocks: int | None = None, chunk: int = 2048
    ) -> None:
        """num_blocks: None is all that the runner has."""
        facts = runner.facts
        config = SchedulerConfig(max_num_batched_tokens=chunk, max_num_seqs=min(chunk, 128))
        self._kv_cache_manager = KVCacheManager(
            num_blocks=num_blocks or facts.num_blocks,
            block_size=facts.block_size,
            enable_prefix_caching=True,
            watermark=config.watermark,
        )
        self.scheduler = Scheduler(
            config,
            self._kv_cache_manager,
            max_model_len=facts.max_model_len,
            eos_token_ids=facts.eos_token_ids,
        )
        self._core = EngineCore(self.scheduler, runner)
        self.num_cached_tokens = 0
        """Prompt tokens of finished requests that came from the prefix cache."""

    def generate(self, prompts: Sequence[list[int]], num_tokens: Sequence[int]) -> list[list[int]]:
        """The greedy output ids of all prompts, added at once in the order given.

        Every step ends with a check of the core's integrity.
        """
        ids = []
        for prompt, count in zip(prompts, num_tokens, strict=True):
            params = SamplingParams(temperature=0, max_tokens=count)
            request_id = f"r{next(self._numbers)}"
            ids.append(request_id)
            self._core.handle(AddRequest(request_id, prompt, params, seed=0, arrival_time=0.0))
        tokens: dict[str, list[int]] = {request_id: [] for request_id in ids}
        while self._core.has_work:
            for output in self._core.step().outputs:
                assert output.message is None, output
                tokens[output.request_id] += output.new_token_ids
                if output.finish_reason is not None:
                    self.num_cached_tokens += output.num_cached_tokens
            self._core.check_integrity()
        return [tokens[request_id] for request_id in ids]
