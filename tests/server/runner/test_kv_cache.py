"""Sizes to the byte, and the messages where they do not suffice."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import torch

from refectory_server.config import CacheConfig
from refectory_server.errors import StartupError
from refectory_server.models.decoder_spec import AttentionSpec, DecoderSpec
from refectory_server.models.rope_spec import RopeSpec
from refectory_server.runner.kv_cache import KVCacheSize, kv_cache_size
from refectory_server.runner.torch_kv_cache import allocate_kv_cache

SPEC = DecoderSpec(
    architecture="LlamaForCausalLM",
    vocab_size=49152,
    hidden_size=576,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    norm_eps=1e-5,
    attention=(AttentionSpec(RopeSpec(theta=1e5)),) * 30,
    max_position=8192,
)
TOKEN_BYTES = 30 * 2 * 3 * 64 * 4
BLOCK_BYTES = 16 * TOKEN_BYTES
GIB = 2**30


def size_of(
    config: CacheConfig | None = None,
    *,
    wanted_model_len: int | None = None,
    memory_limit_bytes: int = 8 * GIB,
    bytes_per_token: int = TOKEN_BYTES,
    max_num_seqs: int = 100_000,
    watermark: float = 0.0,
) -> KVCacheSize:
    return kv_cache_size(
        SPEC,
        config or CacheConfig(),
        bytes_per_token=bytes_per_token,
        max_num_seqs=max_num_seqs,
        wanted_model_len=wanted_model_len,
        watermark=watermark,
        memory_limit_bytes=memory_limit_bytes,
    )


def test_default_is_two_fifths_of_the_limit() -> None:
    size = size_of(memory_limit_bytes=5 * GIB)

    assert size == KVCacheSize(2 * GIB // BLOCK_BYTES, 16, TOKEN_BYTES, 8192)
    assert size.num_bytes <= 2 * GIB < size.num_bytes + BLOCK_BYTES


def test_default_is_no_more_than_all_requests_can_fill() -> None:
    size = size_of(wanted_model_len=100, max_num_seqs=3, watermark=0.1)

    assert size.num_blocks == 24  # 3 requests of 7 blocks are 0.9 of it
    with_flag = CacheConfig(kv_cache_memory_bytes=1000 * BLOCK_BYTES)
    assert size_of(with_flag, wanted_model_len=100, max_num_seqs=3).num_blocks == 1000


def test_default_is_four_gib_at_most() -> None:
    assert size_of(memory_limit_bytes=512 * GIB).num_blocks == 4 * GIB // BLOCK_BYTES


def test_half_the_element_size_doubles_the_blocks() -> None:
    config = CacheConfig(kv_cache_memory_bytes=BLOCK_BYTES * 600)

    assert size_of(config, bytes_per_token=TOKEN_BYTES // 2).num_blocks == 1200


def test_bytes_flag_and_blocks_flag() -> None:
    by_bytes = CacheConfig(kv_cache_memory_bytes=BLOCK_BYTES * 600 + 5)
    by_blocks = CacheConfig(kv_cache_memory_bytes=1, num_gpu_blocks_override=700)

    assert size_of(by_bytes).num_blocks == 600
    assert size_of(by_blocks).num_blocks == 700


def test_small_pool_lowers_max_model_len(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        size = size_of(CacheConfig(kv_cache_memory_bytes=BLOCK_BYTES * 100))

    assert (size.num_blocks, size.max_model_len) == (100, 1600)
    assert caplog.messages == [
        "the KV cache holds 1600 tokens of one request, fewer than max_model_len 8192, which is "
        f"lowered to that; --kv-cache-memory-bytes {512 * BLOCK_BYTES} would hold them all"
    ]


def test_the_watermark_is_not_promised_to_a_request(caplog: pytest.LogCaptureFixture) -> None:
    config = CacheConfig(kv_cache_memory_bytes=BLOCK_BYTES * 512)
    with caplog.at_level(logging.WARNING):
        size = size_of(config, watermark=0.01)

    assert (size.num_blocks, size.max_model_len) == (512, (512 - 6) * 16)
    assert f"--kv-cache-memory-bytes {518 * BLOCK_BYTES} would" in caplog.messages[0]
    enough = CacheConfig(kv_cache_memory_bytes=BLOCK_BYTES * 518)
    assert size_of(enough, watermark=0.01).max_model_len == 8192


def test_max_model_len_flag_that_fits_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    size = size_of(CacheConfig(kv_cache_memory_bytes=BLOCK_BYTES * 100), wanted_model_len=1600)

    assert size.max_model_len == 1600
    assert caplog.messages == []


def test_max_model_len_beyond_the_model() -> None:
    with pytest.raises(StartupError) as caught:
        size_of(wanted_model_len=8193)

    assert caught.value.reason == "MaxModelLenTooLarge"
    assert str(caught.value) == "--max-model-len is 8193; the model allows [2, 8192]"


def test_a_model_that_could_answer_nothing() -> None:
    with pytest.raises(
        StartupError, match="the model's limit is 1 token; at least 2 are"
    ) as caught:
        kv_cache_size(
            dataclasses.replace(SPEC, max_position=1),
            CacheConfig(),
            bytes_per_token=TOKEN_BYTES,
            max_num_seqs=1,
            wanted_model_len=None,
            watermark=0.0,
            memory_limit_bytes=GIB,
        )
    assert caught.value.reason == "ModelInvalid"


def test_not_even_one_block() -> None:
    with pytest.raises(StartupError) as caught:
        size_of(CacheConfig(kv_cache_memory_bytes=BLOCK_BYTES - 1))

    assert caught.value.reason == "KVCacheTooSmall"
    assert str(caught.value) == (
        f"the KV cache has {BLOCK_BYTES - 1} bytes, 1 too few for one block of 16 tokens; "
        f"set --kv-cache-memory-bytes to at least {BLOCK_BYTES}"
    )


def test_tensor_has_one_slot_a_token() -> None:
    cache = allocate_kv_cache(SPEC, KVCacheSize(5, 16, TOKEN_BYTES // 2, 80), torch.bfloat16)

    assert cache.shape == (30, 2, 5, 16, 3, 64)
    assert cache.nbytes == 5 * BLOCK_BYTES // 2


def test_memory_that_cannot_be_had() -> None:
    size = KVCacheSize(2**40, 16, TOKEN_BYTES, 8192)

    with pytest.raises(StartupError, match=f"cannot allocate {size.num_bytes} bytes") as caught:
        allocate_kv_cache(SPEC, size, torch.float32)
    assert caught.value.reason == "KVCacheTooLarge"
