"""`make_request`: a `Request` of which a test names only what matters to it."""

from __future__ import annotations

from collections.abc import Sequence

from refectory_server.core.request import Request
from refectory_server.sampling_params import SamplingParams


def make_request(
    request_id: str = "r0",
    prompt: int | Sequence[int] = 4,
    *,
    max_tokens: int | None = None,
    stop_token_ids: tuple[int, ...] = (),
    ignore_eos: bool = False,
    seed: int = 0,
    arrival_time: float = 0.0,
    deadline: float | None = None,
    priority: int = 0,
    cache_salt: str | None = None,
    lora_id: int | None = None,
    parent_id: str | None = None,
) -> Request:
    """`prompt` is the token ids, or their number: then they are 0, 1, 2, …"""
    return Request(
        request_id,
        range(prompt) if isinstance(prompt, int) else prompt,
        SamplingParams(max_tokens=max_tokens, stop_token_ids=stop_token_ids, ignore_eos=ignore_eos),
        seed=seed,
        arrival_time=arrival_time,
        deadline=deadline,
        priority=priority,
        cache_salt=cache_salt,
        lora_id=lora_id,
        parent_id=parent_id,
    )
