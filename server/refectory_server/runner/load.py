"""Loads the runner that a configuration asks for; the only importer of executors.

Tensors are imported here and not with the module: a server behind its simulator, and every API
process, never pay for them.
"""

from __future__ import annotations

from refectory_server.config import ServerConfig
from refectory_server.runner.interface import ModelRunner, ReportProgress
from refectory_server.runner.simulation import load_simulated_runner
from refectory_server.simulation_profile import load_profile


def load_runner(config: ServerConfig, report: ReportProgress) -> ModelRunner:
    """A runner that is ready for its first step. Raises `StartupError`."""
    if config.simulator.simulate is not None:
        return load_simulated_runner(load_profile(config.simulator.simulate), config, report)
    from refectory_server.runner.load_cpu import load_cpu_runner

    return load_cpu_runner(config, report)
