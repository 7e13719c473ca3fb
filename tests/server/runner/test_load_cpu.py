"""--cpu-threads: the range it is held to, and what is said of a CPU limit below it."""

from __future__ import annotations

import logging
import os

import pytest

from refectory_server.config import ConfigError, CpuConfig, ServerConfig
from refectory_server.errors import StartupError
from refectory_server.runner.cpu_placement import HostCpus
from refectory_server.runner.load import load_runner
from refectory_server.runner.load_cpu import choose_placement


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
