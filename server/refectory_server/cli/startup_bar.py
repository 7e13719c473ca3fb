"""`startup_bar`: how far the start is, as a bar under the log of a terminal.

Knows the engine's status, not what its phases do. Elsewhere than on a terminal the log tells it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

from refectory_server.config import ApiConfig
from refectory_server.engine.async_engine import AsyncEngine
from refectory_server.engine.client import EngineState

_REDRAW_S = 0.1
# Of one width, and with the cursor back at its start: a line of the log, from whichever process,
# is longer and covers it.
_FORMAT = "{desc:<14.14}{percentage:3.0f}% |{bar:20}| {elapsed}\r"


def has_startup_bar(config: ApiConfig) -> bool:
    """Whether there is someone to watch it, and nobody to parse the log that it is in."""
    is_for_people = config.log_format == "text" and config.log_level in ("debug", "info")
    # None where the program was started with a closed standard error.
    return is_for_people and sys.stderr is not None and sys.stderr.isatty()


@contextlib.asynccontextmanager
async def startup_bar(engine: AsyncEngine, config: ApiConfig) -> AsyncIterator[None]:
    """Meanwhile there is a bar, if it is to be, until the engine is ready or dead."""
    if not has_startup_bar(config):
        yield
        return
    drawing = asyncio.create_task(_draw(engine))
    try:
        yield
    finally:
        drawing.cancel()
        await asyncio.wait([drawing])


async def _draw(engine: AsyncEngine) -> None:
    # Here, as most servers have no terminal.
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no thread to redraw what is redrawn anyway
    with tqdm(total=1.0, bar_format=_FORMAT, leave=False) as bar:
        while engine.status.state is EngineState.LOADING:
            bar.n = engine.status.progress
            bar.set_description_str(engine.status.phase)
            await asyncio.sleep(_REDRAW_S)
