"""Chooses and loads the runner that a configuration asks for; the only importer of torch's road."""

from __future__ import annotations

import os

from refectory_server.config import ServerConfig
from refectory_server.runner.interface import ModelRunner, ReportProgress
from refectory_server.runner.simulation import load_simulated_runner
from refectory_server.simulation_profile import load_profile


def load_runner(config: ServerConfig, report: ReportProgress) -> ModelRunner:
    """A runner that is ready for its first step. Raises `StartupError`.

    Torch is imported here and not with the module: the API process never pays for it.
    """
    if config.simulator.simulate is not None:
        return load_simulated_runner(load_profile(config.simulator.simulate), config, report)
    report("import_torch", 0.0)
    # OpenMP threads that spin at a barrier fight for the core with whoever else wants it: with a
    # busy neighbour a decode step took ten times as long as with this short spin, read at import.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    from refectory_server.runner.torch_model_runner import load_torch_runner

    return load_torch_runner(config, report)
