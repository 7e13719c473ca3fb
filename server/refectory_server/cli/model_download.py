"""`download_model`: brings a hub's model here before the engine starts, in a process of its own.

The server answers meanwhile, can be stopped at once, and imports nothing for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import sys
from pathlib import Path

from refectory_server.cli.startup_bar import has_startup_bar
from refectory_server.config import ServerConfig
from refectory_server.errors import StartupError
from refectory_server.models.hub_id import HubId
from refectory_server.runner.interface import ReportProgress

logger = logging.getLogger(__name__)

DOWNLOAD_PHASE = "download"
_NUM_LOG_LINES = 20
"""The log has a line each time another of so many parts has come, unless a bar shows it."""


async def download_model(
    config: ServerConfig, hub_id: HubId, report: ReportProgress
) -> ServerConfig:
    """`config` with the downloaded folder for its model.

    Reports the phase `download`. Raises `StartupError`. Cancelled, it ends the download; the next
    one goes on where this one stopped.
    """
    report(DOWNLOAD_PHASE, 0.0)
    task = {
        "server_pid": os.getpid(),
        "repo": hub_id.repo,
        "revision": hub_id.revision,
        "download_dir": config.model.download_dir,
        "log_level": config.api.log_level,
        "log_format": config.api.log_format,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "refectory_server.cli.download_worker",
        json.dumps(task),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        # Ctrl-C is for the server, which ends this process too.
        start_new_session=True,
    )
    try:
        num_log_lines = 0 if has_startup_bar(config.api) else _NUM_LOG_LINES
        folder = await _follow(process, hub_id, report, num_log_lines)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return dataclasses.replace(config, model=dataclasses.replace(config.model, model=str(folder)))


async def _follow(
    process: asyncio.subprocess.Process, hub_id: HubId, report: ReportProgress, num_log_lines: int
) -> Path:
    assert process.stdout is not None
    num_told = 0
    async for line in process.stdout:
        message = json.loads(line)
        if "folder" in message:
            return Path(message["folder"])
        if "reason" in message:
            raise StartupError(message["message"], reason=message["reason"])
        report(DOWNLOAD_PHASE, message["progress"])
        if int(message["progress"] * num_log_lines) > num_told:
            num_told = int(message["progress"] * num_log_lines)
            logger.info("downloading %s: %.0f %%", hub_id, message["progress"] * 100)
    raise StartupError(
        f"the download of model {hub_id} ended with exit code {await process.wait()}",
        reason="DownloadFailed",
    )
