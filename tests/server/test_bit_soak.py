"""The bit soak, in short; and that it finds a difference and says how to repeat it."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from refectory_kernels.cpu_level import available_levels
from refectory_server.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from refectory_server.runner.interface import ModelRunner, RunnerFacts
from refectory_server.testing import random_runner

BIT_SOAK = Path(__file__).parents[2] / "server" / "benchmarks" / "bit_soak.py"

pytestmark = pytest.mark.skipif(
    not available_levels(), reason="no native library here, or no level of it runs"
)


def test_five_seconds_without_a_difference() -> None:
    command = [sys.executable, "-P", str(BIT_SOAK), "--seconds=5"]
    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    first, *_, last = done.stdout.splitlines()
    assert re.fullmatch(rf"seed \d+, levels: {', '.join(available_levels())}", first)
    counts = re.fullmatch(
        r"no difference: (\d+) rounds, (\d+) answers, \d+ preemptions, \d+ tokens from the cache",
        last,
    )
    assert counts is not None
    assert all(int(count) > 0 for count in counts.groups())


class CompanyRunner:
    """Gives another token to the first request of a step that several share."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    @property
    def facts(self) -> RunnerFacts:
        return self._runner.facts

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        output = self._runner.execute_model(scheduler_output)
        if len(scheduler_output.num_scheduled_tokens) > 1:
            for request_id, token_id in [*output.sampled_token_ids.items()][:1]:
                output.sampled_token_ids[request_id] = 3 + (token_id == 3)
        return output


def test_a_difference_is_told_with_all_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    load = random_runner.load_random_runner
    monkeypatch.setattr(
        random_runner,
        "load_random_runner",
        lambda model, level, *, num_threads: CompanyRunner(
            load(model, level, num_threads=num_threads)
        ),
    )
    main = runpy.run_path(str(BIT_SOAK))["main"]

    def run(seed: int) -> str:
        monkeypatch.setattr(sys, "argv", ["bit_soak", f"--seed={seed}", "--seconds=0"])
        with pytest.raises(SystemExit) as ended:
            main()
        return str(ended.value.code)

    message = run(7)

    assert message.startswith("0 rounds, ")
    for part in ("; then round 7 differs in request ", "alone    Answer(", "together Answer("):
        assert part in message
    repeat = re.search(r'make bit-soak ARGS="--seed (\d+) --seconds 0"$', message)
    assert repeat is not None
    assert run(int(repeat[1])) == message
