"""`/metrics` as dashboards, gateways and autoscalers read it: names, types, labels, buckets.

The table is the contract; vLLM's names must not drift. Parsed with the Prometheus client's own
parser, so that what is tested is what a scraper sees.
"""

from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from refectory_server.metrics import ServerMetrics

TTFT = "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
TOKEN_TIME = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"
REQUEST_TIME = "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
TOKENS = "1 2 5 10 20 50 100 200 500 1000 2000 5000 10000 20000 50000 100000 200000 500000 1000000"
ITERATION = "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384"
COMMON = {"model_name", "engine"}

GAUGES: dict[str, dict[str, set[str]]] = {
    "vllm:num_requests_running": {},
    "vllm:num_requests_waiting": {},
    "vllm:num_requests_waiting_by_reason": {"reason": {"capacity", "deferred"}},
    "vllm:kv_cache_usage_perc": {},
    "vllm:gpu_cache_usage_perc": {},
    "vllm:num_requests_swapped": {},
    "vllm:cpu_cache_usage_perc": {},
    "refectory_max_num_seqs": {},
    "refectory_kv_tokens": {},
    "refectory_watchdog_age_seconds": {},
    "refectory_draining": {},
    "refectory_batch_token_budget": {},
    "refectory_batch_token_budget_used_ratio": {},
}
COUNTERS: dict[str, dict[str, set[str]]] = {
    "vllm:prompt_tokens": {},
    "vllm:prompt_tokens_cached": {},
    "vllm:prompt_tokens_by_source": {
        "source": {"local_compute", "local_cache_hit", "external_kv_transfer"}
    },
    "vllm:generation_tokens": {},
    "vllm:request_success": {
        "finished_reason": {"stop", "length", "abort", "error", "deadline_exceeded"}
    },
    "vllm:num_preemptions": {},
    "vllm:prefix_cache_queries": {},
    "vllm:prefix_cache_hits": {},
    "vllm:gpu_prefix_cache_queries": {},
    "vllm:gpu_prefix_cache_hits": {},
    "vllm:admission_rejections": {"reason": {"max_num_queued_reqs", "max_num_queued_tokens"}},
    "refectory_requests_rejected": {
        "reason": {"max_num_queued_reqs", "max_num_queued_tokens", "shutting_down"}
    },
    "refectory_preempted_tokens": {},
}
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": TTFT,
    "vllm:inter_token_latency_seconds": TOKEN_TIME,
    "vllm:time_per_output_token_seconds": TOKEN_TIME,
    "vllm:request_time_per_output_token_seconds": TOKEN_TIME,
    "vllm:e2e_request_latency_seconds": REQUEST_TIME,
    "vllm:request_queue_time_seconds": REQUEST_TIME,
    "vllm:request_inference_time_seconds": REQUEST_TIME,
    "vllm:request_prefill_time_seconds": REQUEST_TIME,
    "vllm:request_decode_time_seconds": REQUEST_TIME,
    "vllm:request_prompt_tokens": TOKENS,
    "vllm:request_generation_tokens": TOKENS,
    "vllm:request_max_num_generation_tokens": TOKENS,
    "vllm:request_params_max_tokens": TOKENS,
    "vllm:request_prefill_kv_computed_tokens": TOKENS,
    "vllm:request_params_n": "1 2 5 10 20",
    "vllm:iteration_tokens_total": ITERATION,
}
LATER = {"vllm:cache_config_info", "refectory_startup_seconds"}
"""Their label values are learnt when the model is loaded."""


@pytest.fixture(scope="module")
def families() -> dict[str, Metric]:
    """What a fresh server shows."""
    registry = CollectorRegistry()
    ServerMetrics(registry, "served-name")
    text = generate_latest(registry).decode()
    return {
        family.name: family
        for family in text_string_to_metric_families(text)
        # The client library's own addition to each counter and histogram.
        if not family.name.endswith("_created")
    }


def check_labels(family: Metric, sample_name: str, extra: dict[str, set[str]]) -> None:
    samples = [sample for sample in family.samples if sample.name == sample_name]
    for sample in samples:
        assert sample.labels.keys() == COMMON | extra.keys()
        assert sample.labels["model_name"] == "served-name"
        assert sample.labels["engine"] == "0"
        assert sample.value == 0
    for label, values in extra.items():
        assert {sample.labels[label] for sample in samples} == values
    assert len(samples) == math.prod(len(values) for values in extra.values())


def test_nothing_else_is_exposed(families: dict[str, Metric]) -> None:
    assert families.keys() == GAUGES.keys() | COUNTERS.keys() | HISTOGRAMS.keys() | LATER


@pytest.mark.parametrize("name", GAUGES)
def test_gauge(families: dict[str, Metric], name: str) -> None:
    assert families[name].type == "gauge"
    check_labels(families[name], name, GAUGES[name])


@pytest.mark.parametrize("name", COUNTERS)
def test_counter(families: dict[str, Metric], name: str) -> None:
    assert families[name].type == "counter"
    check_labels(families[name], f"{name}_total", COUNTERS[name])


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_histogram(families: dict[str, Metric], name: str) -> None:
    family = families[name]
    assert family.type == "histogram"
    check_labels(family, f"{name}_sum", {})
    check_labels(family, f"{name}_count", {})
    bounds = [
        float(sample.labels["le"]) for sample in family.samples if sample.name == f"{name}_bucket"
    ]
    assert bounds == [*map(float, HISTOGRAMS[name].split()), math.inf]


@pytest.mark.parametrize("name", sorted(LATER))
def test_later_ones_are_gauges_without_series_yet(families: dict[str, Metric], name: str) -> None:
    assert families[name].type == "gauge"
    assert families[name].samples == []


def test_every_family_explains_itself(families: dict[str, Metric]) -> None:
    for family in families.values():
        assert family.documentation.endswith(".")
        assert len(family.documentation) > 10
