"""A report as Markdown, for docs/benchmarks.md. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

from side_by_side.catalogue import OURS
from side_by_side.point import Point
from side_by_side.report import Agreement, EngineReport, Report

NOTHING = "-"


def markdown(report: Report) -> str:
    present = [engine for engine in report.engines if _has_figures(report, engine)]
    missing = [engine for engine in report.engines if engine.problem is not None]
    parts = [
        _head(report),
        "Generated tokens a second, prefill included; in brackets the ratio to ours.",
        _table("tok/s", report, present, lambda e, p: _rate(report, e.name, p)),
        "Seconds of the prefill alone; generated tokens a second after it.",
        _table("s; tok/s", report, present, lambda e, p: _phases(report, e.name, p)),
    ]
    if report.agreements:
        parts += [
            "Prompts whose first token is ours; tokens until the first that is not, in the median.",
            _table("agreement", report, present, lambda e, p: _agreement(report, e.name, p)),
        ]
    parts += [_spread(report, present)] if present else []
    if missing:
        parts.append("\n".join(f"- {engine.title}: {engine.problem}" for engine in missing))
    return "\n\n".join(parts) + "\n"


def _has_figures(report: Report, engine: EngineReport) -> bool:
    return any(m.engine == engine.name for m in report.measurements)


def _head(report: Report) -> str:
    machine = report.machine
    return "\n".join(
        [
            f"### {report.model}, {report.date}",
            "",
            f"- {machine.cpu}, {machine.num_cores} cores, {machine.memory_gib:g} GiB; "
            + " ".join(machine.features),
            f"- Linux {machine.kernel}, Python {machine.python}; commit {report.commit}",
            f"- {_versions(report)}",
            f"- {report.num_threads} threads each, {report.num_rounds} rounds, medians; "
            f"`{report.command}`",
        ]
    )


def _versions(report: Report) -> str:
    """Each environment's once."""
    sets = [
        ", ".join(f"{name} {version}" for name, version in engine.versions.items())
        for engine in report.engines
        if engine.versions
    ]
    return "; ".join(dict.fromkeys(sets))


def _table(
    corner: str,
    report: Report,
    engines: Iterable[EngineReport],
    cell: Callable[[EngineReport, Point], str],
) -> str:
    rows = [
        [corner, *map(str, report.points)],
        ["---", *("---:" for _ in report.points)],
        *([engine.title, *(cell(engine, point) for point in report.points)] for engine in engines),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _rate(report: Report, engine: str, point: Point) -> str:
    rate, ratio = report.tokens_per_s(engine, point), report.ratio(engine, point)
    if rate is None:
        return NOTHING
    return f"{rate:.1f}" if ratio is None else f"{rate:.1f} ({ratio:.2f})"


def _phases(report: Report, engine: str, point: Point) -> str:
    prefill_s, rate = report.prefill_s(engine, point), report.decode_tokens_per_s(engine, point)
    if prefill_s is None:
        return NOTHING
    return f"{prefill_s:.3f}; {NOTHING if rate is None else f'{rate:.1f}'}"


def _agreement(report: Report, engine: str, point: Point) -> str:
    if engine == OURS:
        return "ours"
    found = [a for a in report.agreements if (a.engine, a.point) == (engine, point)]
    return _agreement_text(found[0]) if found else NOTHING


def _agreement_text(agreement: Agreement) -> str:
    first = f"{agreement.num_first_tokens_equal} of {agreement.point.num_prompts}"
    return f"{first}; {agreement.median_equal_tokens:g} of {agreement.point.output_len}"


def _spread(report: Report, engines: Iterable[EngineReport]) -> str:
    spreads = [
        (spread, engine.title, point)
        for engine in engines
        for point in report.points
        if (spread := report.spread(engine.name, point)) is not None
    ]
    spread, title, point = max(spreads, key=lambda entry: entry[0])
    sentence = (
        f"The slowest round took at most {spread:.0%} longer than the fastest ({title}, {point})."
    )
    pressures = [m.cpu_pressure for m in report.measurements if m.cpu_pressure is not None]
    if not pressures:
        return sentence
    return (
        f"{sentence} Some thread on the machine waited for a core "
        f"{statistics.median(pressures):.0%} of the time, in the median."
    )
