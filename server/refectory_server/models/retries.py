"""`Retries`: how often and how soon a transient failure of the hub is tried again."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from refectory_server.errors import StartupError
from refectory_server.models.hub_repo import TransientHubError

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_LONGEST_WISH_S = 300.0


@dataclass(frozen=True, slots=True)
class Retries:
    """`max_retries` after failures in a row, with pauses of 1, 2, 4, ... s."""

    max_retries: int = 5
    max_pause_s: float = 30.0

    def run(
        self,
        attempt: Callable[[], _Result],
        *,
        progress: Callable[[], int] = lambda: 0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> _Result:
        """What `attempt` returns. A failure after `progress` has grown counts as the first again.

        Raises `StartupError` with reason `HubUnreachable` in the end.
        """
        num_failures, before = 0, progress()
        while True:
            try:
                return attempt()
            except TransientHubError as error:
                if progress() > before:
                    num_failures, before = 0, progress()
                num_failures += 1
                if num_failures > self.max_retries:
                    raise StartupError(
                        f"{error}; given up after {num_failures} tries", reason="HubUnreachable"
                    ) from error
                pause_s = self._pause_s(num_failures, error.retry_after_s)
                logger.warning("%s; trying again in %.1f s", error, pause_s)
                sleep(pause_s)

    def _pause_s(self, num_failures: int, wish_s: float) -> float:
        # Up to half more, so that many pods do not come back at the same moment.
        pause_s = min(2.0 ** (num_failures - 1), self.max_pause_s) * random.uniform(1.0, 1.5)
        return max(pause_s, min(wish_s, _LONGEST_WISH_S))
