"""Loads the native CPU executor."""

from __future__ import annotations

import dataclasses
import logging
import time

from refectory_kernels.cpu_decoder import padded_head_dim
from refectory_kernels.cpu_level import CpuLevel
from refectory_kernels.native import cpu_features
from refectory_server.config import ServerConfig
from refectory_server.errors import StartupError
from refectory_server.models.compute_dtype import compute_dtype
from refectory_server.models.native_decoder import build_native_decoder
from refectory_server.models.weights import load_weights
from refectory_server.runner.cpu_placement import CpuPlacement
from refectory_server.runner.host_limits import memory_limit_bytes
from refectory_server.runner.interface import ReportProgress, RunnerFacts
from refectory_server.runner.kv_cache import kv_cache_size
from refectory_server.runner.native_model_runner import NativeModelRunner
from refectory_server.runner.opened_model import open_model
from refectory_server.runner.step_time import NUM_DECODING, choose_step_s, measure_decode_s
from refectory_server.runner.warm_up import warm_up

logger = logging.getLogger(__name__)


def load_native_runner(
    config: ServerConfig, report: ReportProgress, level: CpuLevel, placement: CpuPlacement
) -> NativeModelRunner:
    """Resolve, size, load and warm up. Raises `StartupError` with one clear line.

    Phases reported: resolve_model, load_weights, size_kv_cache, warm_up.
    """
    report("resolve_model", 0.0)
    model = open_model(config.model.model)
    spec = model.spec
    dtype = compute_dtype(config, spec)
    kv_size = spec.num_kv_heads * padded_head_dim(spec.head_dim)
    size = kv_cache_size(
        spec,
        config.cache,
        bytes_per_token=spec.num_layers * 2 * kv_size * dtype.itemsize,
        wanted_model_len=config.model.max_model_len,
        watermark=config.scheduler.watermark,
        max_num_seqs=config.scheduler.max_num_seqs,
        memory_limit_bytes=memory_limit_bytes(),
    )
    started = time.monotonic()
    weights = load_weights(model.files, spec, dtype, report, model.gguf)
    try:
        decoder = build_native_decoder(
            spec,
            weights,
            num_blocks=size.num_blocks,
            block_size=size.block_size,
            max_model_len=size.max_model_len,
            max_tokens=config.scheduler.token_limit,
            level=level,
            cpus=placement.threads,
        )
    except ValueError as error:
        raise StartupError(
            f"{error}; REFECTORY_CPU_LEVEL=torch has no such limit and is several times slower",
            reason="CpuLevelUnavailable",
        ) from error
    except MemoryError as error:
        raise StartupError(
            f"cannot allocate the weights and {size.num_bytes} bytes for the KV cache; lower "
            "--kv-cache-memory-bytes or --num-gpu-blocks-override",
            reason="KVCacheTooLarge",
        ) from error
    except RuntimeError as error:
        raise StartupError(
            f"the native CPU kernels cannot start with {len(placement.threads)} threads: {error}",
            reason="CpuKernelsFailed",
        ) from error
    logger.info("loaded %s in %.2f s", model.files.name, time.monotonic() - started)
    report("size_kv_cache", 0.0)
    size.log()
    facts = RunnerFacts(
        num_blocks=size.num_blocks,
        block_size=size.block_size,
        max_model_len=size.max_model_len,
        vocab_size=spec.vocab_size,
        eos_token_ids=model.eos_token_ids,
        dtype=str(dtype).removeprefix("torch."),
        kv_bytes_per_token=size.bytes_per_token,
        description=f"native {level} on cpu, {str(dtype).removeprefix('torch.')}, "
        f"{placement}; processor: {cpu_features()}",
        spare_cpus=placement.spare_cpus,
    )
    report("warm_up", 0.0)
    runner = NativeModelRunner(decoder, facts)
    warm_up(runner)
    logger.info("runner: %s", facts.description)
    num_decoding = min(NUM_DECODING, config.scheduler.max_num_seqs)
    decode_s = measure_decode_s(runner, num_decoding)
    logger.info("%d requests decode in %.4f s a step", num_decoding, decode_s)
    facts = dataclasses.replace(facts, step_s=choose_step_s(decode_s))
    return NativeModelRunner(decoder, facts)
