"""--cpu-threads: its range, what is said of a CPU limit below it, and where the threads run."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from refectory_kernels.cpu_level import CpuLevel, available_levels
from refectory_server.config import (
    CacheConfig,
    ConfigError,
    CpuConfig,
    ModelConfig,
    ServerConfig,
)
from refectory_server.errors import StartupError
from refectory_server.runner.cpu_placement import CpuPlacement, HostCpus
from refectory_server.runner.load import load_runner
from refectory_server.runner.load_cpu import choose_placement
from refectory_server.runner.load_native import load_native_runner
from refectory_server.testing.tiny_llama import make_tiny_llama


def host(quota: float | None) -> HostCpus:
    cpus = range(4)
    return HostCpus(
        cpus=frozenset(cpus),
        num_online=8,
        quota=quota,
        core_of={cpu: cpu for cpu in cpus},
        node_of=dict.fromkeys(cpus, 0),
    )


@pytest.mark.parametrize("cpu_threads", [0, -3, 1025])
def test_what_no_machine_can_run_is_refused_at_once(cpu_threads: int) -> None:
    with pytest.raises(ConfigError) as caught:
        CpuConfig(cpu_threads=cpu_threads)
    assert str(caught.value) == f"--cpu-threads is {cpu_threads}; allowed is [1, 1024]"


def test_more_threads_than_cpus_are_refused_before_anything_is_loaded() -> None:
    phases: list[str] = []
    config = ServerConfig(cpu=CpuConfig(cpu_threads=1024))
    with pytest.raises(StartupError) as caught:
        load_runner(config, lambda phase, _: phases.append(phase))
    num_cpus = len(os.sched_getaffinity(0))
    said = f"--cpu-threads is 1024; allowed is [1, {num_cpus}], the CPUs there are"
    assert (str(caught.value), caught.value.reason) == (said, "CpuThreadsTooMany")
    assert phases == []


@pytest.mark.parametrize(
    ("quota", "num_threads", "warning"),
    [
        (0.5, None, "the CPU limit is 0.5 and the number of computing threads 1"),
        (2.5, 3, "the CPU limit is 2.5 and the number of computing threads 3"),
        (2.5, None, None),
        (3.0, 3, None),
        (None, 4, None),
    ],
)
def test_more_threads_than_the_cpu_limit_has_cpus_are_warned_of(
    caplog: pytest.LogCaptureFixture,
    quota: float | None,
    num_threads: int | None,
    warning: str | None,
) -> None:
    with caplog.at_level(logging.WARNING):
        choose_placement(num_threads, host(quota))
    assert [message.partition(":")[0] for message in caplog.messages] == [
        text for text in [warning] if text is not None
    ]


@pytest.mark.parametrize("level", available_levels())
def test_threads_are_bound_where_they_are_placed_and_the_caller_only_in_a_step(
    tmp_path: Path, level: CpuLevel
) -> None:
    make_tiny_llama(tmp_path)
    config = ServerConfig(
        model=ModelConfig(model=str(tmp_path)), cache=CacheConfig(num_gpu_blocks_override=16)
    )
    allowed = os.sched_getaffinity(0)
    first, last = min(allowed), max(allowed)
    before = set(os.listdir("/proc/self/task"))
    placement = CpuPlacement((last, first, last), spare_cpus=(first,))
    runner = load_native_runner(config, lambda *_: None, level, placement)
    threads = [int(task) for task in set(os.listdir("/proc/self/task")) - before]
    bound = [sorted(os.sched_getaffinity(thread)) for thread in threads]
    assert sorted(bound) == [[first], [last]]
    assert os.sched_getaffinity(0) == allowed
    assert str(placement) in runner.facts.description
    assert runner.facts.spare_cpus == (first,)
