"""A load in numbers: exact, from records made by hand."""

from __future__ import annotations

import pytest

from refectory_server.bench.load import LoadResult
from refectory_server.bench.request_record import RequestRecord
from refectory_server.bench.summary import format_block, percentile, summarise


def record(sent_at: float, *text_times: float, num_output_tokens: int) -> RequestRecord:
    return RequestRecord(
        sent_at=sent_at,
        ended_at=text_times[-1] + 0.5,
        text_times=list(text_times),
        num_prompt_tokens=10,
        num_output_tokens=num_output_tokens,
    )


RECORDS = [
    record(1.0, 1.2, 1.3, 1.6, num_output_tokens=3),
    record(2.0, 2.4, num_output_tokens=1),
    # Two tokens in the second piece of text.
    record(3.0, 3.1, 3.4, num_output_tokens=3),
    RequestRecord(sent_at=1.0, ended_at=9.0, error="429: full"),
]
RESULT = LoadResult(RECORDS, duration_s=4.0, client_cpu_share=0.25, client_lags_s=[0.0, 0.01])


def test_a_summary_has_vllms_keys_and_their_values() -> None:
    expected = {
        "duration": 4.0,
        "completed": 3,
        "failed": 1,
        "total_input_tokens": 30,
        "total_output_tokens": 7,
        "request_throughput": 0.75,
        "output_throughput": 1.75,
        "total_token_throughput": 9.25,
        # 200, 400, 100
        "mean_ttft_ms": 700 / 3,
        "median_ttft_ms": 200.0,
        "std_ttft_ms": 124.7219128924647,
        "p99_ttft_ms": 396.0,
        # 200 and 150; a single token has none
        "mean_tpot_ms": 175.0,
        "median_tpot_ms": 175.0,
        "std_tpot_ms": 25.0,
        "p99_tpot_ms": 199.5,
        # 100, 300, 300
        "mean_itl_ms": 700 / 3,
        "median_itl_ms": 300.0,
        "std_itl_ms": 94.28090415820634,
        "p99_itl_ms": 300.0,
        "max_itl_ms": 300.0,
        # 1100, 900, 900
        "mean_e2el_ms": 2900 / 3,
        "median_e2el_ms": 900.0,
        "std_e2el_ms": 94.28090415820634,
        "p99_e2el_ms": 1096.0,
        "client_cpu_share": 0.25,
        "p99_client_lag_ms": 9.9,
    }
    assert summarise(RESULT) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (25, 1.75), (50, 2.5), (99, 3.97), (100, 4.0)]
)
def test_a_percentile_lies_between_its_neighbours(percent: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == pytest.approx(expected)


def test_the_block_is_vllms() -> None:
    assert format_block(summarise(RESULT)).splitlines() == [
        "============ Serving Benchmark Result ============",
        "Successful requests:                    3         ",
        "Failed requests:                        1         ",
        "Benchmark duration (s):                 4.00      ",
        "Total input tokens:                     30        ",
        "Total generated tokens:                 7         ",
        "Request throughput (req/s):             0.75      ",
        "Output token throughput (tok/s):        1.75      ",
        "Total Token throughput (tok/s):         9.25      ",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):                         233.33    ",
        "Median TTFT (ms):                       200.00    ",
        "P99 TTFT (ms):                          396.00    ",
        "-----Time per Output Token (excl. 1st token)------",
        "Mean TPOT (ms):                         175.00    ",
        "Median TPOT (ms):                       175.00    ",
        "P99 TPOT (ms):                          199.50    ",
        "---------------Inter-token Latency----------------",
        "Mean ITL (ms):                          233.33    ",
        "Median ITL (ms):                        300.00    ",
        "P99 ITL (ms):                           300.00    ",
        "----------------End-to-end Latency----------------",
        "Mean E2EL (ms):                         966.67    ",
        "Median E2EL (ms):                       900.00    ",
        "P99 E2EL (ms):                          1096.00   ",
        "Longest gap in a stream (ms):           300.00    ",
        "----------------------Client----------------------",
        "CPU of one core (%):                    25.00     ",
        "P99 lag (ms):                           9.90      ",
        "==================================================",
    ]


def test_a_busy_client_says_so_and_a_load_without_answers_has_no_latencies() -> None:
    busy = LoadResult(RECORDS[:1], 4.0, client_cpu_share=0.9, client_lags_s=[])
    assert format_block(summarise(busy)).splitlines()[-1] == (
        "The client was the bottleneck: its one thread had no CPU left."
    )
    failed = summarise(LoadResult(RECORDS[3:], 4.0, client_cpu_share=0.9, client_lags_s=[]))
    assert not [key for key in failed if key.endswith("_ms")]
    assert format_block(failed).splitlines()[-1] == "=" * 50
