"""`make bench-http`: which gaps a long prompt is blamed for; the script on a simulated server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench_http import gaps_within
from refectory_server.bench.request_record import RequestRecord

SCRIPT = Path(__file__).parents[3] / "server" / "benchmarks" / "bench_http.py"


def test_gaps_that_overlap_the_interval_are_counted_whole() -> None:
    records = [
        RequestRecord(0.0, text_times=[1.0, 2.0, 4.0, 8.0, 16.0]),
        RequestRecord(0.0, text_times=[3.0]),
        RequestRecord(0.0, text_times=[4.5, 5.0]),
        RequestRecord(0.0, error="refused"),
    ]
    assert gaps_within(records, 3.0, 6.0) == [2.0, 4.0, 0.5]
    assert gaps_within(records, 2.0, 4.0) == [2.0]


def test_three_columns_come_out(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = subprocess.run(
        [
            *(sys.executable, "-P", str(SCRIPT), "--simulate=instant", "--streams=3"),
            *("--num-prompts=9", "--input-len=8", "--output-len=10", "--long-prompt=40"),
            f"--result={result}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    header = done.stdout.splitlines()[0]
    assert header.startswith("|  | without | with a prompt of ")
    without, with_long = list(json.loads(result.read_text()).values())[1:3]
    assert (without["completed"], with_long["completed"], without["failed"]) == (9, 9, 0)
    assert without["total_output_tokens"] == with_long["total_output_tokens"]
