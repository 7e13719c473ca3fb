"""`Run`: loads the engines, gives each its turns, and keeps what they answered.

All are loaded first, one after the other; while one is measured the others are stopped. An engine
that fails is out of the run, with its reason; the others go on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path

from side_by_side.catalogue import OURS, EngineAbsent, EngineSpec
from side_by_side.engine_process import EngineFailed, EngineProcess, engine_process
from side_by_side.point import Point
from side_by_side.protocol import Settings
from side_by_side.report import Agreement, EngineReport, Measurement, compare
from side_by_side.rounds import Turn, turns


class Run:
    """The engines of one run, what they answered, and which of them are gone."""

    def __init__(self, specs: list[EngineSpec], points: list[Point], num_threads: int) -> None:
        self.engines = {spec.name: _unloaded(spec) for spec in specs}
        self.measurements: list[Measurement] = []
        self._specs = specs
        self._points = points
        self._num_threads = num_threads
        self._output_ids: dict[tuple[str, Point], list[list[int]]] = {}

    def measure(self, peers: Path | None, model: str, num_rounds: int, seed: int) -> None:
        with contextlib.ExitStack() as stack:
            loaded: dict[str, EngineProcess] = {}
            for spec in self._specs:
                try:
                    loaded[spec.name] = self._load(spec, peers, model, stack)
                except (EngineAbsent, EngineFailed) as error:
                    self._fail(spec.name, str(error))
            for turn in turns(list(loaded), self._points, num_rounds, seed):
                if self.engines[turn.engine].problem is None:
                    self._take_turn(turn, loaded[turn.engine])

    def agreements(self) -> list[Agreement]:
        return [
            compare(engine, point, ids, self._output_ids[OURS, point])
            for (engine, point), ids in sorted(self._output_ids.items(), key=str)
            if engine != OURS and (OURS, point) in self._output_ids
        ]

    def _load(
        self, spec: EngineSpec, peers: Path | None, model: str, stack: contextlib.ExitStack
    ) -> EngineProcess:
        python = spec.python(peers)
        settings = Settings(
            model=spec.model(peers, model),
            num_threads=self._num_threads,
            max_num_prompts=max(point.num_prompts for point in self._points),
            max_len=max(point.max_len for point in self._points),
            variant=spec.variant,
        )
        process = stack.enter_context(engine_process(spec.module, python, settings))
        load_s, versions = process.facts["load_s"], process.facts["versions"]
        self.engines[spec.name] = dataclasses.replace(
            self.engines[spec.name], load_s=load_s, versions=versions
        )
        _log(f"{spec.name}: loaded in {load_s:.1f} s")
        return process

    def _take_turn(self, turn: Turn, process: EngineProcess) -> None:
        try:
            answer = process.measure(turn.point)
        except EngineFailed as error:
            self._fail(turn.engine, f"{turn.point}: {error}")
            return
        measurement = Measurement(
            engine=turn.engine,
            point=turn.point,
            round=turn.round,
            prefill_s=answer["prefill_s"],
            total_s=answer["total_s"],
            cpu_pressure=answer["cpu_pressure"],
        )
        self.measurements.append(measurement)
        if answer["output_ids"] is not None:
            self._output_ids[turn.engine, turn.point] = answer["output_ids"]
        rate = turn.point.num_output_tokens / measurement.total_s
        _log(f"round {turn.round}, {turn.point}, {turn.engine}: {rate:.1f} tok/s")

    def _fail(self, engine: str, problem: str) -> None:
        self.engines[engine] = dataclasses.replace(self.engines[engine], problem=problem)
        _log(f"{engine}: {problem}")


def _unloaded(spec: EngineSpec) -> EngineReport:
    return EngineReport(name=spec.name, title=spec.title, command=spec.command())


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
