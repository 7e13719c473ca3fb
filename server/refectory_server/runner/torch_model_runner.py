"""`TorchModelRunner`: executes steps with plain torch on the CPU.

Owns the KV tensors and the order within a step: copies, forward pass, sampling. Knows neither
queues nor text; of blocks it knows the ids it is given.
"""

from __future__ import annotations

import logging
import time

import numpy as np
import torch

from refectory_kernels import reference as ops
from refectory_kernels.attention_metadata import build_attention_metadata
from refectory_kernels.native import cpu_features
from refectory_server.config import ServerConfig
from refectory_server.core.scheduler_output import (
    BlockCopy,
    ModelRunnerOutput,
    SchedulerOutput,
)
from refectory_server.models.compute_dtype import compute_dtype
from refectory_server.models.torch_decoder import TorchDecoder
from refectory_server.models.weights import load_weights
from refectory_server.runner.host_limits import memory_limit_bytes
from refectory_server.runner.input_batch import InputBatch, RequestStates
from refectory_server.runner.interface import ReportProgress, RunnerFacts
from refectory_server.runner.kv_cache import KVCacheSize, kv_cache_size
from refectory_server.runner.opened_model import open_model
from refectory_server.runner.token_choice import choose_tokens
from refectory_server.runner.torch_kv_cache import allocate_kv_cache
from refectory_server.runner.warm_up import warm_up

logger = logging.getLogger(__name__)


class TorchModelRunner:
    """A `ModelRunner` (see `interface`)."""

    def __init__(
        self, decoder: TorchDecoder, size: KVCacheSize, eos_token_ids: tuple[int, ...]
    ) -> None:
        self._decoder = decoder
        self._kv_cache = allocate_kv_cache(decoder.spec, size, decoder.dtype)
        dtype = str(decoder.dtype).removeprefix("torch.")
        self._facts = RunnerFacts(
            num_blocks=size.num_blocks,
            block_size=size.block_size,
            max_model_len=size.max_model_len,
            vocab_size=decoder.spec.vocab_size,
            eos_token_ids=eos_token_ids,
            dtype=dtype,
            kv_bytes_per_token=size.bytes_per_token,
            description=f"torch {torch.__version__} on cpu, {dtype}, {torch.get_num_threads()} "
            f"threads; processor: {cpu_features() or 'unknown'}",
        )
        self._states = RequestStates(self._facts)

    @property
    def facts(self) -> RunnerFacts:
        return self._facts

    @torch.inference_mode()
    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """See `ModelRunner`. A row whose logits are NaN or infinite fails alone."""
        self._states.update(scheduler_output)
        self._copy_blocks(scheduler_output.block_copies)
        if not scheduler_output.num_scheduled_tokens:
            return ModelRunnerOutput()
        batch = self._states.build_batch(scheduler_output)
        hidden = self._forward(batch)
        if not batch.sample_requests:
            return ModelRunnerOutput()
        last_rows = torch.from_numpy(batch.query_starts[batch.sampled + 1]).long() - 1
        return choose_tokens(self._decoder.compute_logits(hidden[last_rows]), batch.sample_requests)

    def _forward(self, batch: InputBatch) -> torch.Tensor:
        query_lens = np.diff(batch.query_starts)
        first_positions = batch.context_lens - query_lens
        offsets = np.repeat(first_positions - batch.query_starts[:-1], query_lens)
        return self._decoder.forward(
            torch.from_numpy(batch.token_ids).long(),
            torch.from_numpy(np.arange(len(batch.token_ids)) + offsets),
            self._kv_cache,
            build_attention_metadata(
                query_lens.tolist(),
                batch.context_lens.tolist(),
                [torch.from_numpy(table).long() for table in batch.block_tables],
                self._facts.block_size,
                self._decoder.dtype,
                self._decoder.spec.windows,
            ),
        )

    def _copy_blocks(self, copies: tuple[BlockCopy, ...]) -> None:
        if copies:
            ops.block_copy(
                self._kv_cache,
                torch.tensor([copy.source_id for copy in copies]),
                torch.tensor([copy.target_id for copy in copies]),
            )


def load_torch_runner(config: ServerConfig, report: ReportProgress) -> TorchModelRunner:
    """Resolve, load, size and warm up. Raises `StartupError` with one clear line.

    Phases reported: resolve_model, load_weights, size_kv_cache, warm_up.
    """
    report("resolve_model", 0.0)
    model = open_model(config.model.model)
    spec = model.spec
    dtype = compute_dtype(config, spec)
    size = kv_cache_size(
        spec,
        config.cache,
        bytes_per_token=spec.num_layers * 2 * spec.kv_size * dtype.itemsize,
        wanted_model_len=config.model.max_model_len,
        watermark=config.scheduler.watermark,
        max_num_seqs=config.scheduler.max_num_seqs,
        memory_limit_bytes=memory_limit_bytes(),
    )
    started = time.monotonic()
    weights = load_weights(model.files, spec, dtype, report, model.gguf)
    decoder = TorchDecoder(spec, weights, size.max_model_len)
    logger.info("loaded %s in %.2f s", model.files.name, time.monotonic() - started)
    report("size_kv_cache", 0.0)
    size.log()
    runner = TorchModelRunner(decoder, size, model.eos_token_ids)
    report("warm_up", 0.0)
    warm_up(runner)
    logger.info("runner: %s", runner.facts.description)
    return runner
