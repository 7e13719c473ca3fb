"""kv_cache_store and block_copy: every slot holds exactly what it should."""

from __future__ import annotations

import torch

from refectory_kernels.reference import block_copy, kv_cache_store


def test_store_writes_the_named_slots_and_no_others() -> None:
    key_cache = torch.zeros(3, 4, 1, 2)
    value_cache = torch.zeros(3, 4, 1, 2)
    key = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]])

    kv_cache_store(key, -key, key_cache, value_cache, torch.tensor([9, 2]))

    expected = torch.zeros(3, 4, 1, 2)
    expected[2, 1, 0] = torch.tensor([1.0, 2.0])
    expected[0, 2, 0] = torch.tensor([3.0, 4.0])
    assert torch.equal(key_cache, expected)
    assert torch.equal(value_cache, -expected)


def test_copy_reads_all_sources_before_it_writes() -> None:
    cache = torch.arange(2 * 2 * 4).float().view(2, 2, 4, 1, 1, 1)
    before = cache.clone()

    block_copy(cache, torch.tensor([0, 1]), torch.tensor([1, 3]))

    assert torch.equal(cache[:, :, 1], before[:, :, 0])
    assert torch.equal(cache[:, :, 3], before[:, :, 1])
    assert torch.equal(cache[:, :, [0, 2]], before[:, :, [0, 2]])
