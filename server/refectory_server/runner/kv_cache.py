"""How large the KV cache is.

Sizing is bytes: what one block costs against what there is. Knows no requests and no tensors;
the scheduler knows only block ids.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from refectory_server.config import CacheConfig
from refectory_server.core.kv_cache_manager import usable_tokens
from refectory_server.errors import StartupError
from refectory_server.models.decoder_spec import DecoderSpec
from refectory_server.models.model_len import max_model_len

logger = logging.getLogger(__name__)

DEFAULT_MEMORY_SHARE = 0.4
DEFAULT_MAX_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True)
class KVCacheSize:
    """The pool in numbers."""

    num_blocks: int
    block_size: int
    bytes_per_token: int
    max_model_len: int
    """Tokens a request can hold."""

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def num_bytes(self) -> int:
        return self.num_tokens * self.bytes_per_token

    def log(self) -> None:
        logger.info(
            "KV cache: %d blocks of %d tokens, %d tokens in all, %d bytes per token, "
            "%.1f requests of %d tokens at once",
            self.num_blocks,
            self.block_size,
            self.num_tokens,
            self.bytes_per_token,
            self.num_tokens / self.max_model_len,
            self.max_model_len,
        )


def kv_cache_size(
    spec: DecoderSpec,
    config: CacheConfig,
    *,
    bytes_per_token: int,
    wanted_model_len: int | None,
    watermark: float,
    max_num_seqs: int,
    memory_limit_bytes: int,
) -> KVCacheSize:
    """The pool that `config` and the memory allow.

    bytes_per_token: of keys and values in all layers
    wanted_model_len: --max-model-len; None: the model's own limit
    watermark: --watermark, the share that no single request can have
    max_num_seqs: --max-num-seqs; by default no more is taken than so many of the longest requests
    fill
    Raises `StartupError`: `MaxModelLenTooLarge`, or `KVCacheTooSmall` where no block fits.
    """
    model_len = max_model_len(spec, wanted_model_len)
    block_bytes = config.block_size * bytes_per_token
    num_blocks = config.num_gpu_blocks_override
    if num_blocks is None:
        num_wanted = math.ceil(
            max_num_seqs * math.ceil(model_len / config.block_size) / (1 - watermark)
        )
        num_bytes = config.kv_cache_memory_bytes or min(
            int(memory_limit_bytes * DEFAULT_MEMORY_SHARE),
            DEFAULT_MAX_BYTES,
            max(num_wanted * block_bytes, 1),
        )
        num_blocks = num_bytes // block_bytes
        if num_blocks == 0:
            raise StartupError(
                f"the KV cache has {num_bytes} bytes, {block_bytes - num_bytes} too few for one "
                f"block of {config.block_size} tokens; set --kv-cache-memory-bytes to at least "
                f"{block_bytes}",
                reason="KVCacheTooSmall",
            )
    num_usable = usable_tokens(num_blocks, config.block_size, watermark)
    if num_usable < model_len:
        num_needed = math.ceil(model_len / config.block_size / (1 - watermark))
        logger.warning(
            "the KV cache holds %d tokens of one request, fewer than max_model_len %d, which is "
            "lowered to that; --kv-cache-memory-bytes %d would hold them all",
            num_usable,
            model_len,
            num_needed * block_bytes,
        )
        model_len = num_usable
    return KVCacheSize(num_blocks, config.block_size, bytes_per_token, model_len)
