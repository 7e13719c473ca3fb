"""The check that requests, lists and blocks agree; tests run it after every step.

Owns no state. `Scheduler.check_integrity` is the only caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from refectory_server.core.kv_cache_manager import KVCacheManager
from refectory_server.core.request import Request


def check_requests(
    unfinished: Mapping[str, Request],
    running: Sequence[Request],
    waiting: Sequence[Request],
    kv_cache_manager: KVCacheManager,
) -> None:
    """Raises `RuntimeError` unless each unfinished request either runs, in blocks, or waits."""
    kv_cache_manager.check_integrity()
    listed = {request.request_id: request for request in (*running, *waiting)}
    if listed != unfinished or len(listed) != len(running) + len(waiting):
        raise RuntimeError(f"unfinished are {list(unfinished)}, listed are {list(listed)}")
    for request in waiting:
        if request.num_computed_tokens or kv_cache_manager.block_ids(request):
            raise RuntimeError(f"request {request.request_id} waits and holds blocks")
    for request in running:
        num_slots = len(kv_cache_manager.block_ids(request)) * kv_cache_manager.block_size
        if request.num_computed_tokens > min(num_slots, request.num_tokens - 1):
            raise RuntimeError(
                f"request {request.request_id} has {request.num_computed_tokens} of "
                f"{request.num_tokens} tokens computed, in {num_slots} slots"
            )
    held = sum(bool(kv_cache_manager.block_ids(request)) for request in running)
    if held != kv_cache_manager.num_holders:
        raise RuntimeError(
            f"{kv_cache_manager.num_holders} tables hold blocks, {held} running requests do"
        )
