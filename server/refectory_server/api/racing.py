"""Work that ends early when its reason goes away: the client leaves, or the server stops.

Owns the race between a request's coroutine and its watchers. Knows no engine and no OpenAI.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

from starlette.types import Receive

from refectory_server.api.lifecycle import Lifecycle, Phase

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection before its response was complete."""


async def race(work: Coroutine[Any, Any, T], *watchers: Coroutine[Any, Any, NoReturn]) -> T:
    """The result of `work`, or the exception of the first watcher to raise.

    All of them have ended when this returns or raises: the loser is cancelled and awaited.
    """
    task = asyncio.ensure_future(work)
    watches = [asyncio.ensure_future(watcher) for watcher in watchers]
    try:
        await asyncio.wait({task, *watches}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return next(watch.result() for watch in watches if watch.done())
    finally:
        for other in (task, *watches):
            other.cancel()
        await asyncio.gather(task, *watches, return_exceptions=True)


async def raise_when_disconnected(receive: Receive) -> NoReturn:
    """Raises `ClientGone`. To be used once the request's body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGone


async def raise_when_stopped(lifecycle: Lifecycle) -> NoReturn:
    """Raises `Unavailable` when the server stops."""
    stopped = asyncio.Event()
    remove_listener = lifecycle.add_stop_listener(stopped.set)
    try:
        if lifecycle.phase is not Phase.STOPPING:
            await stopped.wait()
    finally:
        remove_listener()
    raise lifecycle.unavailable()
