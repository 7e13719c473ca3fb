"""`make_scheduler`: a `Scheduler` over a small pool, and the pool's manager beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from refectory_server.config import SchedulerConfig
from refectory_server.core.kv_cache_manager import KVCacheManager
from refectory_server.core.request_update import RequestUpdate
from refectory_server.core.scheduler import Scheduler
from refectory_server.core.scheduler_output import ModelRunnerOutput, SchedulerOutput


@dataclass(frozen=True, slots=True)
class SmallScheduler:
    """A scheduler and the KV cache manager that it was given."""

    scheduler: Scheduler
    kv: KVCacheManager

    def step(
        self, sampled: dict[str, int] | None = None, errors: dict[str, str] | None = None
    ) -> tuple[SchedulerOutput, list[RequestUpdate]]:
        """One step at time 0 with these results, both structures checked afterwards."""
        output = self.scheduler.schedule(0.0)
        updates = self.scheduler.update_from_output(
            output, ModelRunnerOutput(sampled or {}, errors or {})
        )
        self.scheduler.check_integrity()
        return output, updates


def make_scheduler(
    *,
    num_blocks: int = 16,
    block_size: int = 4,
    max_num_batched_tokens: int = 64,
    max_num_seqs: int = 8,
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs",
    long_prefill_token_threshold: int = 0,
    watermark: float = 0.0,
    max_num_queued_reqs: int | None = None,
    max_num_queued_tokens: int | None = None,
    enable_prefix_caching: bool = True,
    max_model_len: int = 1024,
    eos_token_ids: tuple[int, ...] = (),
) -> SmallScheduler:
    config = SchedulerConfig(
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        scheduling_policy=scheduling_policy,
        long_prefill_token_threshold=long_prefill_token_threshold,
        watermark=watermark,
        max_num_queued_reqs=max_num_queued_reqs,
        max_num_queued_tokens=max_num_queued_tokens,
    )
    kv = KVCacheManager(
        num_blocks,
        block_size,
        enable_prefix_caching=enable_prefix_caching,
        watermark=config.watermark,
    )
    scheduler = Scheduler(config, kv, max_model_len=max_model_len, eos_token_ids=eos_token_ids)
    return SmallScheduler(scheduler, kv)
