"""The benchmarks of the native ops: they build against the kernels and tell what they measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from refectory_kernels.cpu_level import available_levels
from refectory_kernels.native import cpu_features

KERNELS = Path(__file__).parents[2] / "kernels"
PROGRAM = KERNELS / "benchmarks" / "bench_native.py"
LEVELS = available_levels()

pytestmark = pytest.mark.skipif(not LEVELS, reason="no native level runs here")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_one_op_is_built_and_measured(tmp_path: Path) -> None:
    path = tmp_path / "results.json"

    done = run(
        *("elementwise", "--level", LEVELS[0], "--threads", "1", "--seconds", "0.001"),
        *("--build", str(tmp_path / "build"), "--json", str(path)),
    )

    assert done.returncode == 0, done.stdout + done.stderr
    machine = json.loads(path.read_text())
    results = machine.pop("results")
    assert (machine["level"], machine["num_threads"]) == (LEVELS[0], 1)
    assert machine["features"] == str(cpu_features())
    assert machine["flops_per_s"] > machine["bytes_per_s"] > 0
    assert [(result["op"], result["case"]) for result in results] == [
        ("rms_norm", "576 features"),
        ("rms_norm", "2048 features"),
        ("rotary", "12 heads of 64 features"),
        ("kv_cache_store", "3 heads of 64 features"),
        ("epilogue", "store, 2048 columns"),
        ("epilogue", "add to residual, 2048 columns"),
        ("epilogue", "silu and product, 2048 columns"),
        ("epilogue", "gelu_tanh and product, 2048 columns"),
        ("epilogue", "soft cap, 2048 columns"),
    ]
    assert all(0 < result["best_s"] <= result["median_s"] < 1 for result in results)
    header = done.stdout.splitlines()
    assert header[0] == f"{machine['cpu']}: {machine['features']}"
    assert len(header) == 4 + len(results)


def test_an_unknown_op_is_refused() -> None:
    done = run("lineer")

    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(
        "error: op is 'lineer'; allowed are linear, attention, elementwise, step"
    )


def test_the_traced_decoder_fits_the_kernels() -> None:
    """The other programs share it; the compiler reads it and makes no code, which takes no time."""
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra"]
    command += ["-Werror", "-mavx2", "-mfma", "-DREFECTORY_AVX2", f"-I{KERNELS / 'cpu'}"]

    done = subprocess.run(
        [*command, str(PROGRAM.with_name("bench_step.cpp"))], capture_output=True, text=True
    )

    assert (done.returncode, done.stderr) == (0, "")
