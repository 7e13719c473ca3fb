"""The collectors behind `/metrics`: names, labels, types and buckets, nothing else.

vLLM's names, so that its dashboards, gateways and autoscaling recipes work; what vLLM lacks
begins with `refectory_`. Every series exists from the start and reads 0. Does not know what makes
the numbers change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from refectory_server.core.request import FinishReason

QUEUE_LIMIT_REASONS = ("max_num_queued_reqs", "max_num_queued_tokens")
REJECTION_REASONS = (*QUEUE_LIMIT_REASONS, "shutting_down")
PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
WAITING_REASONS = ("capacity", "deferred")

# fmt: off
TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)
TOKEN_TIME_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)
REQUEST_TIME_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)
# vLLM ends these at the model's context, which is not known yet when the series must exist.
TOKEN_COUNT_BUCKETS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
    200_000, 500_000, 1_000_000,
)
ITERATION_TOKEN_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PARAMS_N_BUCKETS = (1, 2, 5, 10, 20)
# fmt: on


Collector = TypeVar("Collector", bound=MetricWrapperBase)


class Labelled(Generic[Collector]):
    """A family with one label besides the common two; indexed by that label's value."""

    def __init__(self, family: Collector, common: dict[str, str], label: str) -> None:
        self._family = family
        self._common = common
        self._label = label

    def __getitem__(self, value: str) -> Collector:
        return self._family.labels(**self._common, **{self._label: value})


class _Factory:
    """Makes collectors with the two labels that every series has, and fills those in."""

    def __init__(self, registry: CollectorRegistry, model_name: str, engine: str) -> None:
        self._registry = registry
        self._common = {"model_name": model_name, "engine": engine}

    def gauge(self, name: str, help_: str) -> Gauge:
        family = Gauge(name, help_, list(self._common), registry=self._registry)
        return family.labels(**self._common)

    def counter(self, name: str, help_: str) -> Counter:
        family = Counter(name, help_, list(self._common), registry=self._registry)
        return family.labels(**self._common)

    def histogram(self, name: str, help_: str, buckets: Sequence[float]) -> Histogram:
        family = Histogram(
            name, help_, list(self._common), registry=self._registry, buckets=buckets
        )
        return family.labels(**self._common)

    def gauges(
        self, name: str, help_: str, label: str, values: Sequence[str] = ()
    ) -> Labelled[Gauge]:
        """`values` are those that shall read 0 from the start."""
        family = Gauge(name, help_, [*self._common, label], registry=self._registry)
        return self._labelled(family, label, values)

    def counters(
        self, name: str, help_: str, label: str, values: Sequence[str] = ()
    ) -> Labelled[Counter]:
        family = Counter(name, help_, [*self._common, label], registry=self._registry)
        return self._labelled(family, label, values)

    def _labelled(
        self, family: Collector, label: str, values: Sequence[str]
    ) -> Labelled[Collector]:
        labelled = Labelled(family, self._common, label)
        for value in values:
            labelled[value]
        return labelled


class MetricFamilies:
    """All collectors, made at once. `model_name` and `engine` label every series."""

    def __init__(self, registry: CollectorRegistry, model_name: str, engine: str) -> None:
        self._registry = registry
        self._make = _Factory(registry, model_name, engine)
        self._create_load()
        self._create_tokens()
        self._create_times()
        self._create_sizes()
        self._create_old_names()
        self._create_own()

    def _create_load(self) -> None:
        make = self._make
        self.num_running = make.gauge("vllm:num_requests_running", "Requests in the batch.")
        self.num_waiting = make.gauge("vllm:num_requests_waiting", "Requests that wait.")
        self.num_waiting_by_reason = make.gauges(
            "vllm:num_requests_waiting_by_reason",
            "Requests that wait, by what they wait for.",
            "reason",
            WAITING_REASONS,
        )
        self.kv_cache_usage = make.gauge(
            "vllm:kv_cache_usage_perc", "Share of the KV blocks that requests hold, 0 to 1."
        )
        self.cache_config_info = Gauge(
            "vllm:cache_config_info",
            "The KV cache; constant 1, there once the model is loaded.",
            [
                "engine",
                "block_size",
                "num_gpu_blocks",
                "cache_dtype",
                "enable_prefix_caching",
                "kv_cache_size_tokens",
            ],
            registry=self._registry,
        )

    def _create_tokens(self) -> None:
        make = self._make
        self.prompt_tokens = make.counter("vllm:prompt_tokens", "Prompt tokens.")
        self.prompt_tokens_cached = make.counter(
            "vllm:prompt_tokens_cached", "Prompt tokens found in the prefix cache."
        )
        self.prompt_tokens_by_source = make.counters(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where their KV came from.",
            "source",
            PROMPT_SOURCES,
        )
        self.generation_tokens = make.counter("vllm:generation_tokens", "Tokens generated.")
        self.request_success = make.counters(
            "vllm:request_success",
            "Requests that ended, in whichever way.",
            "finished_reason",
            [str(reason) for reason in FinishReason],
        )
        self.num_preemptions = make.counter("vllm:num_preemptions", "Preemptions.")
        self.prefix_cache_queries = make.counter(
            "vllm:prefix_cache_queries", "Tokens looked up in the prefix cache."
        )
        self.prefix_cache_hits = make.counter(
            "vllm:prefix_cache_hits", "Tokens found in the prefix cache."
        )
        self.admission_rejections = make.counters(
            "vllm:admission_rejections",
            "Requests refused because of a queue limit.",
            "reason",
            QUEUE_LIMIT_REASONS,
        )

    def _create_times(self) -> None:
        make = self._make
        self.time_to_first_token = make.histogram(
            "vllm:time_to_first_token_seconds", "Arrival to first token.", TTFT_BUCKETS
        )
        self.inter_token_latency = make.histogram(
            "vllm:inter_token_latency_seconds", "Gap between two tokens.", TOKEN_TIME_BUCKETS
        )
        self.request_time_per_output_token = make.histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean gap between a request's tokens.",
            TOKEN_TIME_BUCKETS,
        )
        self.e2e_latency, self.queue_time, self.inference_time = (
            make.histogram(f"vllm:{name}", help_, REQUEST_TIME_BUCKETS)
            for name, help_ in (
                ("e2e_request_latency_seconds", "Arrival to end."),
                ("request_queue_time_seconds", "Arrival to first step."),
                ("request_inference_time_seconds", "First step to last token."),
            )
        )
        self.prefill_time, self.decode_time = (
            make.histogram(f"vllm:{name}", help_, REQUEST_TIME_BUCKETS)
            for name, help_ in (
                ("request_prefill_time_seconds", "First step to first token."),
                ("request_decode_time_seconds", "First to last token."),
            )
        )

    def _create_sizes(self) -> None:
        make = self._make
        self.request_prompt_tokens = make.histogram(
            "vllm:request_prompt_tokens", "A request's prompt tokens.", TOKEN_COUNT_BUCKETS
        )
        self.request_generation_tokens = make.histogram(
            "vllm:request_generation_tokens", "A request's output tokens.", TOKEN_COUNT_BUCKETS
        )
        self.request_max_generation_tokens = make.histogram(
            "vllm:request_max_num_generation_tokens",
            "Output tokens of a request's longest choice.",
            TOKEN_COUNT_BUCKETS,
        )
        self.params_max_tokens = make.histogram(
            "vllm:request_params_max_tokens", "max_tokens as asked for.", TOKEN_COUNT_BUCKETS
        )
        self.request_prefill_computed_tokens = make.histogram(
            "vllm:request_prefill_kv_computed_tokens",
            "A request's prompt tokens that were not in the prefix cache.",
            TOKEN_COUNT_BUCKETS,
        )
        self.params_n = make.histogram(
            "vllm:request_params_n", "Choices asked for.", PARAMS_N_BUCKETS
        )
        self.iteration_tokens = make.histogram(
            "vllm:iteration_tokens_total", "Tokens in a step.", ITERATION_TOKEN_BUCKETS
        )

    def _create_old_names(self) -> None:
        """Names that vLLM has given up and that routers and recipes still read."""
        make = self._make
        self.gpu_cache_usage = make.gauge(
            "vllm:gpu_cache_usage_perc", "Old name of vllm:kv_cache_usage_perc."
        )
        self.time_per_output_token = make.histogram(
            "vllm:time_per_output_token_seconds",
            "Old name of vllm:inter_token_latency_seconds.",
            TOKEN_TIME_BUCKETS,
        )
        self.gpu_prefix_cache_queries = make.counter(
            "vllm:gpu_prefix_cache_queries", "Old name of vllm:prefix_cache_queries."
        )
        self.gpu_prefix_cache_hits = make.counter(
            "vllm:gpu_prefix_cache_hits", "Old name of vllm:prefix_cache_hits."
        )
        make.gauge("vllm:num_requests_swapped", "Always 0: nothing is swapped out.")
        make.gauge("vllm:cpu_cache_usage_perc", "Always 0: there is no swap space.")

    def _create_own(self) -> None:
        make = self._make
        self.max_num_seqs = make.gauge(
            "refectory_max_num_seqs", "Requests in one step at most (--max-num-seqs)."
        )
        self.kv_tokens = make.gauge(
            "refectory_kv_tokens", "Tokens that all KV blocks hold together; 0 while loading."
        )
        self.startup_seconds = make.gauges(
            "refectory_startup_seconds", "Seconds of each start-up phase.", "phase"
        )
        self.watchdog_age = make.gauge(
            "refectory_watchdog_age_seconds", "Time without a step while work is pending."
        )
        self.draining = make.gauge("refectory_draining", "1 on the way out, else 0.")
        self.requests_rejected = make.counters(
            "refectory_requests_rejected", "Requests refused.", "reason", REJECTION_REASONS
        )
        self.preempted_tokens = make.counter(
            "refectory_preempted_tokens", "Computed tokens thrown away by preemptions."
        )
        self.token_budget = make.gauge(
            "refectory_batch_token_budget",
            "Tokens that the latest step might have held; 0 before the first.",
        )
        self.token_budget_used = make.gauge(
            "refectory_batch_token_budget_used_ratio",
            "Tokens of the latest step over those that it might have held; 0 when idle.",
        )
