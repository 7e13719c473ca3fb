"""`SteppedEngine`: the real core with any runner, stepped by hand in the test's own thread."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

from refectory_server.config import SchedulerConfig
from refectory_server.core.kv_cache_manager import KVCacheManager
from refectory_server.core.scheduler import Scheduler
from refectory_server.engine.engine_core import EngineCore
from refectory_server.engine.messages import AddRequest, EngineOutput
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
        requests = [
            AddRequest(
                f"r{next(self._numbers)}",
                prompt,
                SamplingParams(temperature=0, max_tokens=count),
                seed=0,
                arrival_time=0.0,
            )
            for prompt, count in zip(prompts, num_tokens, strict=True)
        ]
        outputs = self.run(requests)
        assert all(output.message is None for news in outputs.values() for output in news), outputs
        self.num_cached_tokens += sum(news[-1].num_cached_tokens for news in outputs.values())
        return [
            [
                token_id
                for output in outputs[request.request_id]
                for token_id in output.new_token_ids
            ]
            for request in requests
        ]

    def run(
        self, requests: Sequence[AddRequest], arrival_steps: Sequence[int] | None = None
    ) -> dict[str, list[EngineOutput]]:
        """All outputs by request, each choice under its own id.

        arrival_steps: before which step each request arrives, in ascending order; None: at once.
        """
        news: dict[str, list[EngineOutput]] = {}
        arrivals = deque(zip(arrival_steps or [0] * len(requests), requests, strict=True))
        for step in itertools.count():
            while arrivals and arrivals[0][0] <= step:
                self._core.handle(arrivals.popleft()[1])
            if not arrivals and not self._core.has_work:
                return news
            for output in self._core.step().outputs:
                news.setdefault(output.request_id, []).append(output)
            self._core.check_integrity()
        raise AssertionError("never reached")
