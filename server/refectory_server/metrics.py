"""`ServerMetrics`: everything `/metrics` shows, bound to the registry it is given.

vLLM's names, labels, types and buckets, so that its dashboards, gateways and autoscaling recipes
work; what vLLM lacks begins with `refectory_`. Listens to the engine as its `EngineObserver`;
knows no HTTP. Every series exists from the start and reads 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from refectory_server.config import CacheConfig, ServerConfig
from refectory_server.core.request import FinishReason
from refectory_server.core.stats import RequestTimings, SchedulerStats
from refectory_server.engine.async_engine import AsyncEngine
from refectory_server.engine.client import EngineState, EngineStatus
from refectory_server.engine.messages import StepOutputs
from refectory_server.metric_families import QUEUE_LIMIT_REASONS, MetricFamilies
from refectory_server.runner.interface import RunnerFacts
from refectory_server.sampling_params import SamplingParams


class ServerMetrics:
    """Implements `EngineObserver`; `refresh` before each scrape."""

    def __init__(self, registry: CollectorRegistry, model_name: str, engine: str = "0") -> None:
        """`model_name` is the first served name: a label, so never a path on this machine."""
        self.registry = registry
        self._families = MetricFamilies(registry, model_name, engine)
        self._engine_label = engine
        self._last_stats = SchedulerStats()
        self._cache_config: CacheConfig | None = None

    def configure(self, config: ServerConfig) -> None:
        """Take the limits that the configuration sets."""
        self._cache_config = config.cache
        self._families.max_num_seqs.set(config.scheduler.max_num_seqs)

    def refresh(self, engine: AsyncEngine, *, is_draining: bool) -> None:
        """Set what changes without an event: read just before a scrape."""
        if engine.status.state is EngineState.READY and self._cache_config is not None:
            self._set_facts(engine.facts, self._cache_config)
            self._cache_config = None
        self._set_load(engine.stats, num_waiting=num_waiting(engine))
        self._families.watchdog_age.set(engine.seconds_without_progress())
        self._families.draining.set(is_draining)

    def on_status(self, status: EngineStatus) -> None:
        for phase, seconds in (status.startup_seconds or {}).items():
            self._families.startup_seconds[phase].set(seconds)

    def on_step(self, step: StepOutputs) -> None:
        stats, last = step.stats, self._last_stats
        self._last_stats = stats
        self._set_load(stats, num_waiting=stats.num_waiting)
        if stats.num_scheduled_tokens:
            self._families.iteration_tokens.observe(stats.num_scheduled_tokens)
        self._families.generation_tokens.inc(
            sum(len(output.new_token_ids) for output in step.outputs)
        )
        queries = stats.num_prefix_query_tokens - last.num_prefix_query_tokens
        hits = stats.num_prefix_hit_tokens - last.num_prefix_hit_tokens
        self._families.prefix_cache_queries.inc(queries)
        self._families.gpu_prefix_cache_queries.inc(queries)
        self._families.prefix_cache_hits.inc(hits)
        self._families.gpu_prefix_cache_hits.inc(hits)
        self._families.num_preemptions.inc(stats.num_preemptions - last.num_preemptions)
        self._families.preempted_tokens.inc(stats.num_preempted_tokens - last.num_preempted_tokens)

    def on_first_token(
        self, ttft_s: float, *, num_prompt_tokens: int, num_cached_tokens: int
    ) -> None:
        self._families.time_to_first_token.observe(ttft_s)
        # Now and not at the end of an answer that may take minutes: autoscalers read the rate.
        num_computed_tokens = num_prompt_tokens - num_cached_tokens
        self._families.prompt_tokens.inc(num_prompt_tokens)
        self._families.prompt_tokens_cached.inc(num_cached_tokens)
        self._families.prompt_tokens_by_source["local_compute"].inc(num_computed_tokens)
        self._families.prompt_tokens_by_source["local_cache_hit"].inc(num_cached_tokens)

    def on_next_tokens(self, itl_s: float) -> None:
        self._families.inter_token_latency.observe(itl_s)
        self._families.time_per_output_token.observe(itl_s)

    def on_rejected(self, reason: str) -> None:
        self._families.requests_rejected[reason].inc()
        if reason in QUEUE_LIMIT_REASONS:
            self._families.admission_rejections[reason].inc()

    def on_finished(
        self,
        request_id: str,
        params: SamplingParams,
        finish_reason: FinishReason,
        timings: RequestTimings,
    ) -> None:
        self._families.request_success[finish_reason].inc()
        if params.max_tokens is not None:
            self._families.params_max_tokens.observe(params.max_tokens)
        if timings.first_token_time is not None:
            num_computed_tokens = timings.num_prompt_tokens - timings.num_cached_tokens
            self._families.request_prompt_tokens.observe(timings.num_prompt_tokens)
            self._families.request_prefill_computed_tokens.observe(num_computed_tokens)
        self._families.request_generation_tokens.observe(timings.num_output_tokens)
        self._families.e2e_latency.observe(timings.e2e_s)
        for histogram, seconds in (
            (self._families.queue_time, timings.queue_s),
            (self._families.prefill_time, timings.prefill_s),
            (self._families.inference_time, timings.inference_s),
            (self._families.decode_time, timings.decode_s),
            (self._families.request_time_per_output_token, timings.tpot_s),
        ):
            if seconds is not None:
                histogram.observe(seconds)

    def on_all_choices_finished(self, timings: Sequence[RequestTimings]) -> None:
        self._families.params_n.observe(len(timings))
        self._families.request_max_generation_tokens.observe(
            max(choice.num_output_tokens for choice in timings)
        )

    def _set_load(self, stats: SchedulerStats, *, num_waiting: int) -> None:
        self._families.num_running.set(stats.num_running)
        self._families.num_waiting.set(num_waiting)
        self._families.num_waiting_by_reason["capacity"].set(num_waiting)
        self._families.kv_cache_usage.set(stats.kv_cache_usage)
        self._families.gpu_cache_usage.set(stats.kv_cache_usage)
        self._families.token_budget.set(stats.token_budget)
        if stats.num_running == num_waiting == 0:
            self._families.token_budget_used.set(0)
        elif stats.num_scheduled_tokens:
            used = stats.num_scheduled_tokens / stats.token_budget
            self._families.token_budget_used.set(used)

    def _set_facts(self, facts: RunnerFacts, cache_config: CacheConfig) -> None:
        num_tokens = facts.num_blocks * facts.block_size
        self._families.kv_tokens.set(num_tokens)
        self._families.cache_config_info.labels(
            engine=self._engine_label,
            block_size=str(facts.block_size),
            num_gpu_blocks=str(facts.num_blocks),
            cache_dtype=facts.dtype,
            enable_prefix_caching=str(cache_config.enable_prefix_caching),
            kv_cache_size_tokens=str(num_tokens),
        ).set(1)


def num_waiting(engine: AsyncEngine) -> int:
    """Requests that wait, those included that the engine has not seen during a long step."""
    stats = engine.stats
    return max(stats.num_waiting, engine.num_in_flight - stats.num_running)
