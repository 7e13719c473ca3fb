"""What a request must satisfy to be queued at all.

Owns the refusals and their messages. Changes nothing; `Scheduler.add_request` is the only caller.
"""

from __future__ import annotations

from refectory_server.config import SchedulerConfig
from refectory_server.core.kv_cache_manager import KVCacheManager
from refectory_server.core.request import Request
from refectory_server.core.request_queue import RequestQueue
from refectory_server.errors import PromptTooLong, QueueFull


def check_same_prompt(parent: Request, child: Request) -> None:
    """Raises `ValueError` for a child that could read, or overtake, what is not its own."""
    if (
        list(child.token_ids) != list(parent.token_ids[: parent.num_prompt_tokens])
        or child.cache_salt != parent.cache_salt
        or child.lora_id != parent.lora_id
        or child.priority != parent.priority
    ):
        raise ValueError(
            f"request {child.request_id} differs from its parent {parent.request_id} in prompt, "
            f"cache_salt, lora_id or priority"
        )


def compute_max_output_tokens(
    request: Request, max_model_len: int, kv_cache_manager: KVCacheManager
) -> int:
    """Output tokens the request may have: what it asks for, capped by context and pool.

    Raises `PromptTooLong` when that would be none: it could not run even alone.
    """
    max_tokens = min(max_model_len, kv_cache_manager.max_request_tokens)
    if request.num_prompt_tokens + 1 > max_tokens:
        raise PromptTooLong(
            f"the prompt has {request.num_prompt_tokens} tokens, at most {max_tokens - 1} are "
            f"allowed: with 1 output token it has to fit max_model_len {max_model_len} and the KV "
            f"cache's {kv_cache_manager.max_request_tokens} tokens for one request"
        )
    room = max_tokens - request.num_prompt_tokens
    wanted = request.sampling_params.max_tokens
    return room if wanted is None else min(wanted, room)


def check_queue_limits(
    request: Request, waiting: RequestQueue, config: SchedulerConfig, num_free_seats: int
) -> None:
    """Raises `QueueFull`. Whom a seat is free for does not wait: the next step takes it.

    Into an empty queue any prompt may go: it is the next to run.
    """
    num_waiting = len(waiting) - num_free_seats
    if num_waiting < 0:
        return
    # A second for each round of seats in front: a hint, as nothing is known of their lengths.
    retry_after_s = max(1, -(-num_waiting // config.max_num_seqs))
    if num_waiting >= config.queue_limit:
        raise QueueFull(
            f"{num_waiting} requests wait, max_num_queued_reqs is {config.queue_limit}",
            reason="max_num_queued_reqs",
            retry_after_s=retry_after_s,
        )
    limit = config.max_num_queued_tokens
    if request.parent_id is not None:
        limit = None  # its parent, which is in front of it, computes the prompt
    if limit is not None and waiting and waiting.num_tokens + request.num_prompt_tokens > limit:
        raise QueueFull(
            f"{waiting.num_tokens} tokens wait, the prompt's {request.num_prompt_tokens} more "
            f"would exceed max_num_queued_tokens {limit}",
            reason="max_num_queued_tokens",
            retry_after_s=retry_after_s,
        )
