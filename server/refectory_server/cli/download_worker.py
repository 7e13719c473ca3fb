"""The process that downloads a server's model: it can be killed, and leaves no memory behind.

Started by `model_download`, with its task as JSON in its only argument. Answers on standard output,
one JSON object a line: progress, and in the end the folder or the reason. Ends with the server.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from refectory_server.errors import StartupError
from refectory_server.log import configure_logging
from refectory_server.models.hub import fetch_model
from refectory_server.models.hub_id import HubId
from refectory_server.parent_death import die_with_parent

logger = logging.getLogger("refectory_server.cli.download_worker")  # not "__main__"

_REPORT_INTERVAL_S = 0.2


class _Reporter:
    """Passes progress on, a few times a second."""

    def __init__(self) -> None:
        self._last = 0.0

    def report(self, num_bytes: int, total_bytes: int) -> None:
        now = time.monotonic()
        if now - self._last >= _REPORT_INTERVAL_S or num_bytes == total_bytes:
            self._last = now
            say({"progress": num_bytes / max(total_bytes, 1)})


def say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def main(task: dict[str, Any]) -> int:
    die_with_parent(task["server_pid"])
    configure_logging(task["log_level"], task["log_format"])
    hub_id = HubId(task["repo"], task["revision"])
    try:
        folder = fetch_model(hub_id, task["download_dir"], _Reporter().report)
    except StartupError as error:
        say({"reason": error.reason, "message": str(error)})
        return 1
    except Exception as error:
        # The process boundary: whatever it is, the server must be told.
        logger.exception("the download failed")
        say({"reason": "DownloadFailed", "message": f"{type(error).__name__}: {error}"})
        return 1
    say({"folder": str(folder)})
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
