"""Measure engines side by side, keep the raw JSON, print the table.

    make bench PEERS=folder MODEL=smollm2-135m POINTS="8x128/128 1x128/128"

Ends with exit code 1 where there is nothing of ours to compare with.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
from pathlib import Path

from side_by_side.catalogue import CATALOGUE, OURS, choose
from side_by_side.machine import this_machine
from side_by_side.point import parse_point
from side_by_side.report import Report, write_report
from side_by_side.run import Run
from side_by_side.table import markdown

EMBEDDED = "embedded://"
DEFAULT_MODEL = "smollm2-135m"
DEFAULT_POINTS = "32x128/128 8x128/128 1x128/128 64x512/128"


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or "unknown"


def _command(args: argparse.Namespace) -> str:
    """As it was typed, but for the machine's paths."""
    variables = {
        "PEERS": "..." if args.peers else "",
        "MODEL": args.model,
        "POINTS": f'"{args.points}"',
        "ENGINES": f'"{args.engines}"' if args.engines else "",
    }
    return " ".join(["make bench", *(f"{k}={v}" for k, v in variables.items() if v)])


def main() -> int:
    parser = argparse.ArgumentParser(prog="side_by_side", description=__doc__)
    names = ", ".join(spec.name for spec in CATALOGUE)
    cores = sorted(os.sched_getaffinity(0))
    parser.add_argument("--peers", type=Path, help="folder of environments and models/")
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="name in PEERS/models, else embedded"
    )
    parser.add_argument("--points", default=DEFAULT_POINTS, help="PROMPTSxINPUT/OUTPUT, several")
    parser.add_argument("--engines", default="", help=f"of {names}; all without a name")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(cores), help="on as many cores")
    parser.add_argument("--seed", type=int, default=0, help="of the order of engines")
    parser.add_argument("--results", type=Path, default=Path("docs/benchmarks"))
    args = parser.parse_args()
    try:
        points = [parse_point(text) for text in args.points.split()]
        specs = choose(args.engines.split())
    except ValueError as error:
        parser.error(str(error))
    if args.rounds < 1:
        parser.error(f"--rounds is {args.rounds}; allowed is 1 or more")
    if not 1 <= args.threads <= len(cores):
        parser.error(f"--threads is {args.threads}; allowed is [1, {len(cores)}]")
    machine, commit = this_machine(), _commit()
    # Inherited by every engine, with what it starts.
    os.sched_setaffinity(0, cores[: args.threads])
    run = Run(specs, points, args.threads)
    model = args.model if args.peers else EMBEDDED + args.model
    run.measure(args.peers, model, args.rounds, args.seed)
    date = datetime.date.today().isoformat()
    report = Report(
        date=date,
        commit=commit,
        command=_command(args),
        machine=machine,
        model=args.model,
        num_threads=args.threads,
        num_rounds=args.rounds,
        points=points,
        engines=list(run.engines.values()),
        measurements=run.measurements,
        agreements=run.agreements(),
    )
    path = args.results / f"{date}-{args.model}.json"
    write_report(report, path)
    print(markdown(report))
    print(f"raw results: {path}", file=sys.stderr)
    return int(run.engines[OURS].problem is not None) if OURS in run.engines else 0


if __name__ == "__main__":
    sys.exit(main())
