"""Chooses what computes on the processor: the native library at some level, or plain torch."""

from __future__ import annotations

import ctypes
import logging
import os

from refectory_kernels.cpu_decoder import KV_BLOCK_TOKENS
from refectory_kernels.cpu_level import CpuLevel, available_levels
from refectory_kernels.dispatch import select_level
from refectory_server.config import ServerConfig
from refectory_server.errors import StartupError
from refectory_server.runner.cpu_placement import CpuPlacement, HostCpus, place_threads
from refectory_server.runner.host_limits import host_cpus
from refectory_server.runner.interface import ModelRunner, ReportProgress

logger = logging.getLogger(__name__)

LEVEL_VARIABLE = "REFECTORY_CPU_LEVEL"


def load_cpu_runner(config: ServerConfig, report: ReportProgress) -> ModelRunner:
    """A runner that is ready for its first step. Raises `StartupError`."""
    level = choose_level(config)
    placement = choose_placement(config.cpu.cpu_threads, host_cpus())
    report("import_torch", 0.0)
    # OpenMP threads that spin at a barrier fight for the core with whoever else wants it: with a
    # busy neighbour a decode step took ten times as long as with this short spin, read at import.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    import torch

    if level is None:
        from refectory_server.runner.torch_model_runner import load_torch_runner

        torch.set_num_threads(len(placement.threads))
        runner: ModelRunner = load_torch_runner(config, report)
    else:
        from refectory_server.runner.load_native import load_native_runner

        # Torch only reads the weights here: it shall leave no threads of its own behind.
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            runner = load_native_runner(config, report, level, placement)
        finally:
            torch.set_num_threads(num_threads)
    # glibc keeps what loading freed, some hundred MiB, unless it is told not to.
    ctypes.CDLL(None).malloc_trim(0)
    return runner


def choose_placement(num_threads: int | None, host: HostCpus) -> CpuPlacement:
    """num_threads: --cpu-threads. Raises `StartupError`."""
    try:
        placement = place_threads(host, num_threads)
    except ValueError as error:
        raise StartupError(f"--cpu-threads is {error}", reason="CpuThreadsTooMany") from error
    if host.quota is not None and len(placement.threads) > host.quota:
        logger.warning(
            "the CPU limit is %g and the number of computing threads %d: they will stand still at "
            "the end of every 100 ms",
            host.quota,
            len(placement.threads),
        )
    return placement


def choose_level(config: ServerConfig) -> CpuLevel | None:
    """None: plain torch, said loudly if not asked for."""
    requested = os.environ.get(LEVEL_VARIABLE)
    try:
        level = select_level(available_levels(), requested)
    except ValueError as error:
        raise StartupError(f"{LEVEL_VARIABLE} is {error}", reason="CpuLevelUnavailable") from error
    if level is None and not requested:
        logger.warning(
            "no native CPU kernels: the processor has neither AVX-512 nor AVX2, or the package "
            "was built without a C++ compiler; plain torch computes, several times slower"
        )
    if level is not None and config.cache.block_size % KV_BLOCK_TOKENS:
        if requested:
            raise StartupError(
                f"{LEVEL_VARIABLE} is {level}, but --block-size is {config.cache.block_size}; "
                f"allowed with it are multiples of {KV_BLOCK_TOKENS}",
                reason="CpuLevelUnavailable",
            )
        logger.warning(
            "--block-size %d: the native CPU kernels need a multiple of %d; plain torch computes, "
            "several times slower",
            config.cache.block_size,
            KV_BLOCK_TOKENS,
        )
        return None
    return level
