"""Each native op against this machine's own arithmetic peak and read bandwidth.

    python kernels/benchmarks/bench_native.py [op ...] [--level avx512] [--threads 2]

Compiles the programs beside it into build/benchmarks and runs them one after another. A row's
bound is the longer of its arithmetic at the peak and its reads from memory at the bandwidth, both
measured first; `of bound` says how near the best run came. Rows that begin with a dash are parts of
the step above them, without waits: those are a row of their own.

Only a quiet machine tells the truth. A share above 100 % means that the peaks were disturbed, or
that weights stayed in a shared cache; matrices stay 10 to 15 % below the peak where the clock
falls under their load.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from refectory_kernels.cpu_level import CpuLevel, available_levels
from refectory_kernels.native import cpu_features

ROOT = Path(__file__).parents[2]
OPS = ("linear", "attention", "elementwise", "step")


@dataclass(frozen=True, slots=True)
class Result:
    """One case of one op; seconds, floating-point operations and bytes of one run."""

    op: str
    case: str
    best_s: float
    median_s: float
    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Machine:
    cpu: str
    features: str
    level: str
    num_threads: int
    flops_per_s: float
    """Fused multiply-adds in float32 count twice."""
    bytes_per_s: float

    def bound_s(self, result: Result) -> float:
        return max(result.flops / self.flops_per_s, result.bytes / self.bytes_per_s)


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(": ", 1)[1] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def build(folder: Path, targets: Sequence[str]) -> None:
    cmake = [sys.executable, "-P", "-m", "cmake"]
    configure = [*cmake, "-S", str(ROOT), "-B", str(folder), "-DREFECTORY_BENCHMARKS=ON"]
    for command in (configure, [*cmake, "--build", str(folder), "--target", *targets]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise SystemExit(done.stdout)


def run(program: Path, num_threads: int, case_s: float) -> list[Result]:
    command = [str(program), str(num_threads), str(case_s)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [Result(**json.loads(line)) for line in done.stdout.splitlines()]


def measure_machine(peaks: Sequence[Result], level: CpuLevel, num_threads: int) -> Machine:
    arithmetic, reading = peaks
    return Machine(
        cpu=cpu_name(),
        features=str(cpu_features()),
        level=level,
        num_threads=num_threads,
        flops_per_s=arithmetic.flops / arithmetic.best_s,
        bytes_per_s=reading.bytes / reading.best_s,
    )


def header(machine: Machine) -> str:
    columns = f"{'best µs':>12}{'median':>12}{'GFLOP/s':>9}{'GB/s':>7}{'of bound':>10}"
    return (
        f"{machine.cpu}: {machine.features}\n"
        f"level {machine.level}, {machine.num_threads} threads, "
        f"{machine.flops_per_s / 1e9:.0f} GFLOP/s, reads {machine.bytes_per_s / 1e9:.1f} GB/s\n\n"
        f"{'op':15}{'case':38}{columns}"
    )


def table_row(result: Result, machine: Machine) -> str:
    times = f"{result.best_s * 1e6:12.2f}{result.median_s * 1e6:12.2f}"
    row = f"{result.op:15}{result.case:38}{times}"
    if not result.flops:
        return row
    giga_s = result.best_s * 1e9
    share = machine.bound_s(result) / result.best_s
    return f"{row}{result.flops / giga_s:9.1f}{result.bytes / giga_s:7.1f}{share:10.0%}"


def main(arguments: Sequence[str] | None = None) -> None:
    levels = available_levels()
    if not levels:
        raise SystemExit("no native level runs on this processor")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("ops", nargs="*", metavar="op", help=f"of {', '.join(OPS)}; none: all")
    parser.add_argument("--level", type=CpuLevel, choices=levels, default=levels[-1])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=0.3, help="of each case")
    parser.add_argument("--json", type=Path, help="where to write the results too")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "benchmarks")
    args = parser.parse_args(arguments)
    if unknown := sorted(set(args.ops) - set(OPS)):
        parser.error(f"op is {unknown[0]!r}; allowed are {', '.join(OPS)}")

    ops = args.ops or OPS
    targets = {op: f"bench_{op}_{args.level}" for op in ("peaks", *ops)}
    build(args.build, list(targets.values()))
    programs = args.build / "kernels" / "benchmarks"
    peaks = run(programs / targets["peaks"], args.threads, args.seconds)
    machine = measure_machine(peaks, args.level, args.threads)
    print(header(machine), flush=True)
    results = []
    for op in ops:
        for result in run(programs / targets[op], args.threads, args.seconds):
            print(table_row(result, machine), flush=True)
            results.append({**asdict(result), "bound_s": machine.bound_s(result)})
    if args.json:
        args.json.write_text(json.dumps({**asdict(machine), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
