"""What every test run shares: the header, the hypothesis profile, and CI's rule on skips.

Knows no component. A run with CI=true must have run the kernel and cluster tests: a skip there
would be a machine without a compiler or a cluster that nobody noticed, so it counts as a failure.
Only a test marked `gpu` may be skipped for want of its device.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import settings

# Before any test imports torch; see refectory_server/runner/load.py.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

KERNEL_TESTS = Path(__file__).parent / "kernels"

# Derandomised: a test run proves the same thing on every machine. No deadline: the machine is
# shared, and no test asserts a time.
settings.register_profile("refectory", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("refectory")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """A test that runs an entry point in this process leaves logging as it was."""
    loggers = [logging.getLogger(), logging.getLogger("refectory_server")]
    levels = [logger.level for logger in loggers]
    result = yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    return result


def pytest_report_header() -> str:
    cores = len(os.sched_getaffinity(0))
    versions = [f"{name} {metadata.version(name)}" for name in ("torch", "transformers")]
    return f"refectory: {cores} cores, {', '.join(versions)}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests last: what fails fast is seen first."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


def pytest_collection_finish() -> None:
    """Give torch the cores this process may use, where a test has imported it already."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(len(os.sched_getaffinity(0)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    may_skip = item.get_closest_marker("gpu") is not None
    if report.skipped and not hasattr(report, "wasxfail") and not may_skip:
        must_run = item.get_closest_marker("cluster") or KERNEL_TESTS in item.path.parents
        if must_run:
            _fail_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same rule for a module that skips itself as a whole."""
    report = yield
    if report.skipped and KERNEL_TESTS in collector.path.parents:
        _fail_in_ci(report)
    return report


def _fail_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("CI") == "true":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI=true forbids for this test: {reason}"
