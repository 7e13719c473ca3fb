"""A load's result in numbers, with the keys of `vllm bench serve`'s JSON, and its printed block.

Pure. Differences: TPOT leaves out requests of one token, which vLLM counts as 0; `max_itl_ms` and
the client's own lag are additions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from refectory_server.bench.load import LoadResult

BUSY_CLIENT_SHARE = 0.8
"""Of one core; above it the client, which has one thread, counts as the bottleneck."""
_WIDTH = 50
_INTERVALS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}

Summary = dict[str, float]


def summarise(result: LoadResult) -> Summary:
    """Latencies of completed requests alone; a kind that nobody has is left out."""
    done = [record for record in result.records if record.error is None]
    num_input = sum(record.num_prompt_tokens for record in done)
    num_output = sum(record.num_output_tokens for record in done)
    summary: Summary = {
        "duration": result.duration_s,
        "completed": len(done),
        "failed": len(result.records) - len(done),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(done) / result.duration_s,
        "output_throughput": num_output / result.duration_s,
        "total_token_throughput": (num_input + num_output) / result.duration_s,
    }
    summary |= _intervals("ttft", (record.ttft_s for record in done))
    summary |= _intervals("tpot", (record.tpot_s for record in done))
    gaps = [gap for record in done for gap in record.gaps_s]
    summary |= _intervals("itl", gaps)
    if gaps:
        summary["max_itl_ms"] = max(gaps) * 1e3
    summary |= _intervals("e2el", (record.e2e_s for record in done))
    summary["client_cpu_share"] = result.client_cpu_share
    if result.client_lags_s:
        summary["p99_client_lag_ms"] = percentile(result.client_lags_s, 99) * 1e3
    return summary


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest values."""
    return float(np.percentile(values, percent))


def _intervals(name: str, seconds: Iterable[float | None]) -> Summary:
    values = [value * 1e3 for value in seconds if value is not None]
    if not values:
        return {}
    return {
        f"mean_{name}_ms": float(np.mean(values)),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(np.std(values)),
        f"p99_{name}_ms": percentile(values, 99),
    }


def format_block(summary: Summary) -> str:
    """The block that `vllm bench serve` prints."""
    lines = [
        " Serving Benchmark Result ".center(_WIDTH, "="),
        _line("Successful requests:", summary["completed"]),
        _line("Failed requests:", summary["failed"]),
        _line("Benchmark duration (s):", summary["duration"]),
        _line("Total input tokens:", summary["total_input_tokens"]),
        _line("Total generated tokens:", summary["total_output_tokens"]),
        _line("Request throughput (req/s):", summary["request_throughput"]),
        _line("Output token throughput (tok/s):", summary["output_throughput"]),
        _line("Total Token throughput (tok/s):", summary["total_token_throughput"]),
    ]
    for name, title in _INTERVALS.items():
        if f"mean_{name}_ms" not in summary:
            continue
        lines.append(title.center(_WIDTH, "-"))
        for kind in ("mean", "median", "p99"):
            text = f"{kind.capitalize()} {name.upper()} (ms):"
            lines.append(_line(text, summary[f"{kind}_{name}_ms"]))
    if "max_itl_ms" in summary:
        lines.append(_line("Longest gap in a stream (ms):", summary["max_itl_ms"]))
    lines.append("Client".center(_WIDTH, "-"))
    lines.append(_line("CPU of one core (%):", summary["client_cpu_share"] * 100))
    if "p99_client_lag_ms" in summary:
        lines.append(_line("P99 lag (ms):", summary["p99_client_lag_ms"]))
    lines.append("=" * _WIDTH)
    if summary["completed"] and summary["client_cpu_share"] > BUSY_CLIENT_SHARE:
        lines.append("The client was the bottleneck: its one thread had no CPU left.")
    return "\n".join(lines)


def _line(text: str, value: float) -> str:
    return f"{text:<40}{value:<10}" if isinstance(value, int) else f"{text:<40}{value:<10.2f}"
