"""`TorchModelRunner`: executes steps with plain torch on the CPU.

Owns the KV tensors and the order within a step: copies, forward pass, sampling. Knows neither
queues nor text; of blocks it knows the ids it is given.
"""

from __future__ import annotations

import logging
import time

import torch

from refectory_kernels import reference as ops
from refectory_kernels.native import cpu_features
from refectory_server.config import ServerConfig
from refectory_server.core.scheduler_output import (
    BlockCopy,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from refectory_server.models.decoder_spec import DecoderSpec
from refectory_server.models.gguf_file import GgufFile
from refectory_server.models.hf_config import read_eos_token_ids, read_hf_config
from refectory_server.models.registry import read_decoder_spec
from refectory_server.models.source import resolve_model
from refectory_server.models.torch_decoder import TorchDecoder
from refectory_server.models.weights import load_weights
from refectory_server.runner.host_limits import memory_limit_bytes, num_cpus
from refectory_server.runner.input_batch import RequestStates
from refectory_server.runner.interface import ReportProgress, RunnerFacts
from refectory_server.runner.kv_cache import KVCacheSize, allocate_kv_cache, kv_cache_size
from refectory_server.runner.token_choice import choose_tokens
from refectory_server.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

_COMPUTE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.bfloat16}
"""Checkpoint precision to what is computed; torch is slow in float16 on CPUs."""
_WARM_UP_ID = "warm-up"


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
        self._states = RequestStates(self._facts, decoder.dtype, decoder.spec.windows)

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
        hidden = self._decoder.forward(
            batch.token_ids, batch.positions, self._kv_cache, batch.attention
        )
        if not batch.sample_requests:
            return ModelRunnerOutput()
        logits = self._decoder.compute_logits(hidden[batch.sample_rows])
        return choose_tokens(logits, batch.sample_requests)

    def warm_up(self) -> None:
        """One tiny step through block 0, which nobody holds yet: torch sets itself up in it."""
        request = NewRequestData(
            _WARM_UP_ID, (0,), 1, SamplingParams(temperature=1.0, top_p=0.9), 0, (0,), 0
        )
        self.execute_model(
            SchedulerOutput(new_requests=(request,), num_scheduled_tokens={_WARM_UP_ID: 1})
        )
        self.execute_model(SchedulerOutput(dropped_request_ids=(_WARM_UP_ID,)))

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
    torch.set_num_threads(min(torch.get_num_threads(), num_cpus()))
    report("resolve_model", 0.0)
    files = resolve_model(config.model.model)
    gguf = GgufFile(files.path) if files.is_gguf else None
    hf_config = read_hf_config(files, gguf)
    spec = read_decoder_spec(hf_config)
    dtype = _compute_dtype(config, spec)
    started = time.monotonic()
    decoder = TorchDecoder(spec, load_weights(files, spec, dtype, report, gguf))
    logger.info("loaded %s in %.2f s", files.name, time.monotonic() - started)
    report("size_kv_cache", 0.0)
    size = kv_cache_size(
        spec,
        config.cache,
        element_bytes=dtype.itemsize,
        wanted_model_len=config.model.max_model_len,
        watermark=config.scheduler.watermark,
        memory_limit_bytes=memory_limit_bytes(),
    )
    logger.info(
        "KV cache: %d blocks of %d tokens, %d tokens in all, %d bytes per token, %.1f requests "
        "of %d tokens at once",
        size.num_blocks,
        size.block_size,
        size.num_tokens,
        size.bytes_per_token,
        size.num_tokens / size.max_model_len,
        size.max_model_len,
    )
    runner = TorchModelRunner(decoder, size, read_eos_token_ids(files, hf_config))
    report("warm_up", 0.0)
    runner.warm_up()
    logger.info("runner: %s", runner.facts.description)
    return runner


def _compute_dtype(config: ServerConfig, spec: DecoderSpec) -> torch.dtype:
    """--dtype auto: the checkpoint's precision, bfloat16 in place of float16."""
    wanted = config.model.dtype
    return _COMPUTE_DTYPES[spec.checkpoint_dtype if wanted == "auto" else wanted]
