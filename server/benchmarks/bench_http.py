"""What the clients of a busy server feel, and what a long prompt among them does to that.

    python server/benchmarks/bench_http.py [--model FOLDER] [--streams 32] [--long-prompt 4000]

Starts a server and keeps a fixed number of streams open, lengths drawn evenly from half to one and
a half times the given ones. Then the same again, with a long prompt arriving in the middle: its own
column are the gaps that overlap its time to first token. No prefix cache: both runs ask the same.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from refectory_server.bench.load import LoadResult, run_load
from refectory_server.bench.request_record import RequestRecord
from refectory_server.bench.summary import Summary, percentile, summarise
from refectory_server.bench.workload import PlannedRequest, RandomWorkload
from refectory_server.testing.server_process import server_process

LONG_PROMPT_OUTPUT_LEN = 16
ROWS = {
    "output_throughput": "output tokens a second",
    "median_ttft_ms": "TTFT, median ms",
    "p99_ttft_ms": "TTFT, p99 ms",
    "median_tpot_ms": "TPOT, median ms",
    "p99_tpot_ms": "TPOT, p99 ms",
    "median_itl_ms": "gap, median ms",
    "p99_itl_ms": "gap, p99 ms",
    "max_itl_ms": "gap, longest ms",
    "client_cpu_share": "CPU of the client, cores",
}


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A run with a long prompt in its middle."""

    streams: LoadResult
    long: RequestRecord

    def summary(self) -> Summary:
        """Of the gaps alone that overlap the long prompt's time to first token."""
        if self.long.ttft_s is None:
            raise RuntimeError(f"the long prompt got no token: {self.long.error}")
        start, end = self.long.sent_at, self.long.sent_at + self.long.ttft_s
        gaps = gaps_within(self.streams.records, start, end)
        if not gaps:
            return {}
        milliseconds = [gap * 1e3 for gap in gaps]
        return {
            "median_itl_ms": percentile(milliseconds, 50),
            "p99_itl_ms": percentile(milliseconds, 99),
            "max_itl_ms": max(milliseconds),
        }


def gaps_within(records: Sequence[RequestRecord], start: float, end: float) -> list[float]:
    """Seconds between pieces of text, where the gap overlaps [start, end]."""
    return [
        gap
        for record in records
        for earlier, gap in zip(record.text_times, record.gaps_s, strict=False)
        if earlier < end and earlier + gap > start
    ]


async def disturb(
    url: str, plan: Sequence[PlannedRequest], long_prompt: int, at_s: float, streams: int
) -> Disturbance:
    workload = RandomWorkload(
        num_prompts=1, input_len=long_prompt, output_len=LONG_PROMPT_OUTPUT_LEN, seed=-1
    )
    (long,) = workload.requests()
    late = PlannedRequest(long.prompt, long.max_tokens, at_s)
    busy, disturbing = await asyncio.gather(
        run_load(url, plan, max_concurrency=streams), run_load(url, [late])
    )
    return Disturbance(busy, disturbing.records[0])


def format_table(columns: dict[str, Summary]) -> str:
    rows = [["", *columns], ["---", *("---:" for _ in columns)]]
    for key, title in ROWS.items():
        cells = [f"{column[key]:.2f}" if key in column else "" for column in columns.values()]
        rows.append([title, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", help="as `refectory serve` takes it; default: the embedded one")
    parser.add_argument("--simulate", help="a simulation profile in place of a model")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--num-prompts", type=int, default=96)
    parser.add_argument("--input-len", type=int, default=128, help="words, about as many tokens")
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--long-prompt", type=int, default=4000, help="words")
    parser.add_argument("--result", type=Path, help="write the JSON here")
    args = parser.parse_args()
    plan = RandomWorkload(
        num_prompts=args.num_prompts,
        input_len=args.input_len,
        output_len=args.output_len,
        range_ratio=0.5,
    ).requests()
    source = [f"--simulate={args.simulate}"] if args.simulate else [args.model] * bool(args.model)
    with server_process(*source, "--dtype=bfloat16", "--no-enable-prefix-caching") as server:
        server.wait_until_ready()
        asyncio.run(run_load(server.url, plan[: args.streams]))
        quiet = asyncio.run(run_load(server.url, plan, max_concurrency=args.streams))
        busy = asyncio.run(
            disturb(server.url, plan, args.long_prompt, quiet.duration_s / 2, args.streams)
        )
    columns = {
        "without": summarise(quiet),
        f"with a prompt of {busy.long.num_prompt_tokens:,} tokens": summarise(busy.streams),
        "while it is computed": busy.summary(),
    }
    print(format_table(columns))
    print(f"\nThe long prompt's TTFT: {(busy.long.ttft_s or math.nan) * 1e3:.0f} ms")
    if args.result is not None:
        now = datetime.datetime.now().isoformat(timespec="seconds")
        args.result.write_bytes(msgspec.json.encode({"date": now, **columns}) + b"\n")


if __name__ == "__main__":
    main()
