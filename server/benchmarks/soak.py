"""Does a server that answers for long grow? Its memory over many requests, and its CPU when idle.

    python server/benchmarks/soak.py [--num-requests 5000] [--max-slope 1024]
    python server/benchmarks/soak.py --real 300

Starts a server on the profile `instant` (`--real`: the embedded model), keeps it busy with requests
of all kinds (streamed or not, left in the middle, refused, stopped, of several choices), and fits a
line to the resident memory of its two processes over the number of requests, once it is warm.
Ends with exit code 1 where the slope is above the limit, or where anything is left in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from refectory_server.testing.process_usage import cpu_seconds, resident_bytes
from refectory_server.testing.server_process import ServerProcess, server_process

NUM_WARM_UP = 500
"""Requests until pools, caches and the allocator have their size; half of them, if that is less."""
NUM_SAMPLES = 50
SETTLE_S, IDLE_S = 1.0, 3.0
MIB = 2**20

# So few blocks that all have been written to, and hold a prefix, once the server counts as warm.
SIMULATED = ("--simulate=instant", "--num-gpu-blocks-override=512")
REAL = ("--max-model-len=512", "--num-gpu-blocks-override=64")
# glibc: give a freed tensor's memory back at once, so that what stays is what somebody keeps.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@dataclass(slots=True)
class Soak:
    """One run: the server, what it is asked, and its memory on the way."""

    server: ServerProcess
    num_requests: int
    max_tokens: int
    """Of each choice."""
    num_done: int = 0
    memory: dict[str, list[int]] = field(default_factory=lambda: {"API": [], "engine": []})
    """Resident bytes of each process, at every sample."""
    sampled_at: list[int] = field(default_factory=list)
    """Requests done by each sample."""

    async def run(self, concurrency: int) -> None:
        """Rounds of requests; a sample after each, while nothing is in flight."""
        num_in_round = max(1, self.num_requests // NUM_SAMPLES)
        async with httpx.AsyncClient(base_url=self.server.url, timeout=120) as client:
            while self.num_done < self.num_requests:
                end = min(self.num_done + num_in_round, self.num_requests)
                numbers = iter(range(self.num_done, end))
                async with asyncio.TaskGroup() as group:
                    for _ in range(concurrency):
                        group.create_task(self._send_all(client, numbers))
                await self._expect_nothing_left(client)
                self.num_done = end
                self._sample()

    def slope(self, process: str) -> float:
        """Bytes a request, of the samples after the warm-up."""
        num_warm_up = min(NUM_WARM_UP, self.num_requests // 2)
        first = next(i for i, n in enumerate(self.sampled_at) if n >= num_warm_up)
        line = statistics.linear_regression(self.sampled_at[first:], self.memory[process][first:])
        return line.slope

    async def _send_all(self, client: httpx.AsyncClient, numbers: Iterator[int]) -> None:
        for number in numbers:
            await self._send(client, number)

    async def _send(self, client: httpx.AsyncClient, number: int) -> None:
        text = f"You are a polite clerk who files letters. Letter {number}: "
        body: dict[str, Any] = {"max_tokens": self.max_tokens, "seed": number}
        path = "/v1/completions"
        if number % 2:
            path = "/v1/chat/completions"
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        kind = number // 2 % 6
        match kind:
            case 0:
                body["temperature"] = 3
            case 1:
                body["stop"] = ["e", "a"]
            case 2:
                body |= {"n": 2, "logprobs": True, "top_logprobs": 3} if number % 2 else {"n": 2}
            case 3 | 4:
                body["stream"] = True
        async with client.stream("POST", path, json=body) as answer:
            if answer.status_code != (400 if kind == 0 else 200):
                raise RuntimeError(f"{answer.status_code}: {(await answer.aread()).decode()}")
            async for _ in answer.aiter_lines():
                if kind == 4:
                    break

    async def _expect_nothing_left(self, client: httpx.AsyncClient) -> None:
        deadline = time.monotonic() + 10
        while True:
            load = (await client.get("/load")).json()
            left = {k: load[k] for k in ("in_flight", "running", "waiting", "kv_cache_usage")}
            if not any(left.values()):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"something is left in flight: {left}")
            await asyncio.sleep(0.05)

    def _sample(self) -> None:
        self.sampled_at.append(self.num_done)
        self.memory["API"].append(resident_bytes(self.server.pid))
        self.memory["engine"].append(resident_bytes(self.server.engine_pid))
        if self.num_done % min(500, max(1, self.num_requests // 10)) == 0:
            sizes = ", ".join(f"{k} {v[-1] / MIB:.1f} MiB" for k, v in self.memory.items())
            print(f"{self.num_done:6d} requests: {sizes}", flush=True)


def idle_share(server: ServerProcess) -> float:
    """CPU time of both processes together over time, with nothing to do."""
    pids = (server.pid, server.engine_pid)
    time.sleep(SETTLE_S)
    before = sum(map(cpu_seconds, pids))
    time.sleep(IDLE_S)
    return (sum(map(cpu_seconds, pids)) - before) / IDLE_S


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--num-requests", type=int, default=5000, help="simulated ones")
    parser.add_argument("--real", type=int, metavar="N", help="N to the embedded model instead")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--max-slope", type=float, default=1024, help="bytes a request")
    args = parser.parse_args()
    num_requests = args.num_requests if args.real is None else args.real
    if num_requests < 10:
        parser.error(f"{num_requests} requests are too few for a slope: 10 is the least")
    with server_process(*(REAL if args.real else SIMULATED), env=MALLOC) as server:
        server.wait_until_ready()
        soak = Soak(server, num_requests, max_tokens=4 if args.real else 200)
        started = time.monotonic()
        asyncio.run(soak.run(args.concurrency))
        seconds = time.monotonic() - started
        slopes = {process: soak.slope(process) for process in soak.memory}
        total = sum(slopes.values())
        print(
            f"{soak.num_done} requests in {seconds:.0f} s; slope: {total:.0f} bytes a request ("
            + ", ".join(f"{process} {slope:.0f}" for process, slope in slopes.items())
            + f"), at most {args.max_slope:.0f} allowed"
        )
        print(f"idle for {IDLE_S:g} s: {idle_share(server):.2%} of a CPU")
    return int(total > args.max_slope)


if __name__ == "__main__":
    sys.exit(main())
