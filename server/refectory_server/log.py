"""How the programs log: one line a record, to standard error. Called by entry points only."""

from __future__ import annotations

import logging


def configure_logging(level: str) -> None:
    """Set up the root logger; `level` is a name such as "info"."""
    logging.basicConfig(
        level=level.upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        force=True,
    )
    # Third parties speak up only when something is wrong.
    for name in ("httpx", "transformers", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
