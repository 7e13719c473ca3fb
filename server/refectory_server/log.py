"""How the programs log: one record a line, to standard error, as text or as JSON.

`configure_logging` is called by entry points only. A record's `extra` fields are part of its JSON;
in the text its message says the same in words.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time (RFC 3339, UTC), level, logger, message, extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{k: v for k, v in vars(record).items() if k not in _STANDARD_FIELDS},
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str, ensure_ascii=False)


def configure_logging(level: str, log_format: str) -> None:
    """Set up the root logger. `level` is a name such as "info", `log_format` "text" or "json"."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonFormatter()
        if log_format == "json"
        else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Third parties speak up only when something is wrong.
    for name in ("httpx", "httpx2", "transformers", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
