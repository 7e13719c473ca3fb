"""`ServerMetrics`: exact numbers from given events, and from whole requests."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from prometheus_client import CollectorRegistry

from refectory_server.config import SchedulerConfig, ServerConfig
from refectory_server.core.request import FinishReason
from refectory_server.core.stats import RequestTimings, SchedulerStats
from refectory_server.engine.client import EngineState, EngineStatus
from refectory_server.engine.messages import EngineOutput, StepOutputs
from refectory_server.metrics import ServerMetrics
from refectory_server.sampling_params import SamplingParams
from refectory_server.testing.simulated_app import SimulatedApp, simulated_app

pytestmark = pytest.mark.anyio

PLAIN = frozenset[tuple[str, str]]()


def label(name: str, value: str) -> frozenset[tuple[str, str]]:
    return frozenset({(name, value)})


class Recorded:
    """Metrics with a registry to read them from."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = ServerMetrics(self.registry, "m")

    def __getitem__(self, name: str) -> float | None:
        return self.value(name)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"model_name": "m", "engine": "0", **labels})


def step(stats: SchedulerStats, *new_token_ids: list[int]) -> StepOutputs:
    outputs = [EngineOutput(str(i), ids) for i, ids in enumerate(new_token_ids)]
    return StepOutputs(outputs, stats, 0.0)


def test_a_step_sets_gauges_and_adds_what_counters_gained() -> None:
    seen = Recorded()
    seen.metrics.configure(ServerConfig(scheduler=SchedulerConfig(max_num_seqs=8)))
    stats = SchedulerStats(
        num_running=3,
        num_waiting=2,
        num_blocks=10,
        num_free_blocks=4,
        num_scheduled_tokens=64,
        token_budget=256,
        num_prefix_query_tokens=100,
        num_prefix_hit_tokens=32,
        num_preemptions=1,
        num_preempted_tokens=50,
    )
    seen.metrics.on_step(step(stats, [1], [2, 3], []))
    assert seen["vllm:num_requests_running"] == 3
    assert seen["vllm:num_requests_waiting"] == 2
    assert seen.value("vllm:num_requests_waiting_by_reason", reason="capacity") == 2
    assert seen.value("vllm:num_requests_waiting_by_reason", reason="deferred") == 0
    assert seen["vllm:kv_cache_usage_perc"] == seen["vllm:gpu_cache_usage_perc"] == 0.6
    assert seen["vllm:generation_tokens_total"] == 3
    assert seen["vllm:iteration_tokens_total_sum"] == 64
    assert seen["refectory_batch_token_budget"] == 256
    assert seen["refectory_batch_token_budget_used_ratio"] == 0.25
    assert seen["refectory_max_num_seqs"] == 8
    later = dataclasses.replace(
        stats,
        num_running=0,
        num_waiting=0,
        num_scheduled_tokens=0,
        num_prefix_query_tokens=130,
        num_prefix_hit_tokens=48,
        num_preemptions=3,
        num_preempted_tokens=70,
    )
    seen.metrics.on_step(step(later))
    seen.metrics.on_step(step(later))
    assert seen["vllm:prefix_cache_queries_total"] == 130
    assert seen["vllm:gpu_prefix_cache_queries_total"] == 130
    assert seen["vllm:prefix_cache_hits_total"] == 48
    assert seen["vllm:gpu_prefix_cache_hits_total"] == 48
    assert seen["vllm:num_preemptions_total"] == 3
    assert seen["refectory_preempted_tokens_total"] == 70
    assert seen["vllm:iteration_tokens_total_count"] == 1
    assert seen["refectory_batch_token_budget_used_ratio"] == 0


def test_a_finished_request() -> None:
    seen = Recorded()
    timings = RequestTimings(
        arrival_time=10.0,
        scheduled_time=10.5,
        first_token_time=12.0,
        last_token_time=16.0,
        finish_time=16.5,
        num_prompt_tokens=100,
        num_cached_tokens=64,
        num_output_tokens=5,
    )
    seen.metrics.on_finished("id", SamplingParams(max_tokens=20), FinishReason.LENGTH, timings)
    seen.metrics.on_all_choices_finished(
        [timings, dataclasses.replace(timings, num_output_tokens=1)]
    )
    assert seen.value("vllm:request_success_total", finished_reason="length") == 1
    assert seen.value("vllm:request_success_total", finished_reason="stop") == 0
    sums = {
        "vllm:request_prompt_tokens_sum": 100,
        "vllm:request_prefill_kv_computed_tokens_sum": 36,
        "vllm:request_generation_tokens_sum": 5,
        "vllm:request_max_num_generation_tokens_sum": 5,
        "vllm:request_params_max_tokens_sum": 20,
        "vllm:request_params_n_sum": 2,
        "vllm:e2e_request_latency_seconds_sum": 6.5,
        "vllm:request_queue_time_seconds_sum": 0.5,
        "vllm:request_prefill_time_seconds_sum": 1.5,
        "vllm:request_inference_time_seconds_sum": 5.5,
        "vllm:request_decode_time_seconds_sum": 4.0,
        "vllm:request_time_per_output_token_seconds_sum": 1.0,
    }
    assert {name: seen[name] for name in sums} == sums


def test_a_request_that_never_began_counts_no_prompt_and_no_phase() -> None:
    seen = Recorded()
    timings = RequestTimings(
        arrival_time=10.0,
        scheduled_time=None,
        first_token_time=None,
        last_token_time=None,
        finish_time=11.0,
        num_prompt_tokens=100,
        num_cached_tokens=0,
        num_output_tokens=0,
    )
    seen.metrics.on_finished("id", SamplingParams(), FinishReason.ABORT, timings)
    assert seen.value("vllm:request_success_total", finished_reason="abort") == 1
    assert seen["vllm:request_prompt_tokens_count"] == 0
    assert seen["vllm:request_queue_time_seconds_count"] == 0
    assert seen["vllm:request_params_max_tokens_count"] == 0
    assert seen["vllm:e2e_request_latency_seconds_sum"] == 1


def test_a_prompt_counts_at_its_first_token() -> None:
    seen = Recorded()
    seen.metrics.on_first_token(0.5, num_prompt_tokens=100, num_cached_tokens=64)
    assert seen["vllm:time_to_first_token_seconds_sum"] == 0.5
    assert seen["vllm:prompt_tokens_total"] == 100
    assert seen["vllm:prompt_tokens_cached_total"] == 64
    sources = {
        source: seen.value("vllm:prompt_tokens_by_source_total", source=source)
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
    }
    assert sources == {"local_compute": 36, "local_cache_hit": 64, "external_kv_transfer": 0}


def test_token_times_and_their_old_name() -> None:
    seen = Recorded()
    seen.metrics.on_next_tokens(0.125)
    seen.metrics.on_next_tokens(0.25)
    assert seen["vllm:inter_token_latency_seconds_sum"] == 0.375
    assert seen["vllm:time_per_output_token_seconds_sum"] == 0.375


def test_rejections_startup_phases() -> None:
    seen = Recorded()
    seen.metrics.on_rejected("max_num_queued_tokens")
    seen.metrics.on_rejected("shutting_down")
    for reason, count in (("max_num_queued_tokens", 1), ("shutting_down", 1)):
        assert seen.value("refectory_requests_rejected_total", reason=reason) == count
    reason = "max_num_queued_tokens"
    assert seen.value("vllm:admission_rejections_total", reason=reason) == 1
    seen.metrics.on_status(EngineStatus(EngineState.LOADING, "load", 0.5))
    seen.metrics.on_status(EngineStatus(EngineState.READY, startup_seconds={"load": 1.5}))
    assert seen.value("refectory_startup_seconds", phase="load") == 1.5


async def test_a_scrape_after_a_request(api: SimulatedApp) -> None:
    body = {"prompt": "x" * 20, "max_tokens": 3}
    assert (await api.client.post("/v1/completions", json=body)).status_code == 200
    while api.behind.core.has_work:
        await asyncio.sleep(0)
    samples = await api.samples()
    assert samples["vllm:prompt_tokens_total", PLAIN] == 20
    assert samples["vllm:generation_tokens_total", PLAIN] == 3
    assert samples["vllm:request_success_total", label("finished_reason", "length")] == 1
    assert samples["vllm:time_to_first_token_seconds_count", PLAIN] == 1
    assert samples["vllm:inter_token_latency_seconds_count", PLAIN] == 2
    assert samples["vllm:num_requests_running", PLAIN] == 0
    assert samples["refectory_kv_tokens", PLAIN] == 1024
    assert samples["refectory_watchdog_age_seconds", PLAIN] == 0
    [info] = [labels for name, labels in samples if name == "vllm:cache_config_info"]
    assert dict(info) == {
        "block_size": "16",
        "num_gpu_blocks": "64",
        "cache_dtype": "float32",
        "enable_prefix_caching": "True",
        "kv_cache_size_tokens": "1024",
    }


async def test_a_scrape_during_a_long_step_sees_those_that_arrived_meanwhile() -> None:
    async with simulated_app() as api:
        api.gate.close()
        body = {"prompt": "hi", "max_tokens": 2}
        asking = [
            asyncio.create_task(api.client.post("/v1/completions", json=body)) for _ in range(5)
        ]
        while api.engine.num_in_flight < 5 or not api.engine.stats.num_running:
            await asyncio.sleep(0)
        samples = await api.samples()
        # The step that hangs computes at least the first; nobody in it counts as waiting.
        num_running = samples["vllm:num_requests_running", PLAIN]
        assert num_running >= 1
        assert samples["vllm:num_requests_waiting", PLAIN] == 5 - num_running
        assert samples["vllm:iteration_tokens_total_count", PLAIN] == 0
        api.gate.open()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
