"""CPU time of a step: `schedule` plus `update_from_output`, the runner left out.

    python server/benchmarks/bench_scheduler.py [--num-requests 128] [--num-steps 1000]

All requests decode, prefix caching on, blocks of 16 tokens, their ends spread over all offsets in
a block: what every generated token pays for being scheduled. Prints the median and the 99th
percentile in milliseconds of the thread's own time, so that a shared machine does not show.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time

from refectory_server.config import SchedulerConfig
from refectory_server.core.kv_cache_manager import KVCacheManager
from refectory_server.core.request import Request
from refectory_server.core.scheduler import Scheduler
from refectory_server.core.scheduler_output import ModelRunnerOutput
from refectory_server.sampling_params import SamplingParams

BLOCK_SIZE = 16


def make_decoding_scheduler(num_requests: int, num_prompt_tokens: int, num_steps: int) -> Scheduler:
    """A scheduler whose requests have all computed their prompts and sampled a first token."""
    num_tokens = num_prompt_tokens + BLOCK_SIZE + num_steps + 2
    config = SchedulerConfig(
        max_num_batched_tokens=num_requests * num_tokens, max_num_seqs=num_requests
    )
    num_blocks = num_requests * (num_tokens // BLOCK_SIZE + 1)
    # A watermark on top, so that nothing waits and nothing is preempted.
    kv = KVCacheManager(num_blocks + num_blocks // 50, BLOCK_SIZE, watermark=config.watermark)
    scheduler = Scheduler(config, kv, max_model_len=num_tokens, eos_token_ids=(0,))
    for i in range(num_requests):
        num_prompt = num_prompt_tokens + i % BLOCK_SIZE
        prompt = [1 + (i * 7919 + position) % 30_000 for position in range(num_prompt)]
        params = SamplingParams(max_tokens=num_steps + 2, stop_token_ids=(0,))
        scheduler.add_request(Request(f"request-{i}", prompt, params, seed=i, arrival_time=0.0))
    run_step(scheduler)
    return scheduler


def run_step(scheduler: Scheduler) -> float:
    """One step in which every scheduled request samples; returns its CPU seconds."""
    start = time.thread_time()
    scheduler_output = scheduler.schedule(now=0.0)
    scheduled = time.thread_time()
    runner_output = ModelRunnerOutput(dict.fromkeys(scheduler_output.num_scheduled_tokens, 1))
    executed = time.thread_time()
    scheduler.update_from_output(scheduler_output, runner_output)
    return (scheduled - start) + (time.thread_time() - executed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--num-requests", type=int, default=128)
    parser.add_argument("--num-prompt-tokens", type=int, default=512)
    parser.add_argument("--num-steps", type=int, default=1000)
    args = parser.parse_args()
    scheduler = make_decoding_scheduler(args.num_requests, args.num_prompt_tokens, args.num_steps)
    # As the server does once it is up: what stays for good is not looked at in each collection.
    gc.freeze()
    milliseconds = [run_step(scheduler) * 1e3 for _ in range(args.num_steps)]
    stats = scheduler.stats()
    assert stats.num_running == args.num_requests, stats
    assert stats.num_preemptions == 0, stats
    percentiles = statistics.quantiles(milliseconds, n=100)
    print(
        f"{args.num_requests} requests decoding, {args.num_steps} steps: "
        f"median {statistics.median(milliseconds):.3f} ms, p99 {percentiles[98]:.3f} ms a step"
    )


if __name__ == "__main__":
    main()
