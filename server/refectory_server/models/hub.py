"""`fetch_model`: a hub's model as a local folder, downloaded where it is not here yet.

Owns where models lie under `--download-dir`, and what to do without a network. Imported only where
a hub id is at hand; see `hub_id_of`.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from refectory_server.errors import StartupError
from refectory_server.models.download_marker import read_marker
from refectory_server.models.hub_download import HubDownload, ReportBytes
from refectory_server.models.hub_id import HubId
from refectory_server.models.hub_repo import HubRepo
from refectory_server.models.retries import Retries

logger = logging.getLogger(__name__)


def default_download_dir() -> Path:
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return Path(home).expanduser() / "refectory"


def fetch_model(
    hub_id: HubId,
    download_dir: str | None,
    report: ReportBytes,
    *,
    retries: Retries | None = None,
) -> Path:
    """The folder with the whole model; it is of one commit and never changes.

    Without a network, what an earlier call brought for the same revision is used. Raises
    `StartupError`.
    """
    retries = retries or Retries()
    base = Path(download_dir).expanduser() if download_dir else default_download_dir()
    base = base / hub_id.repo.replace("/", "--")
    earlier = _earlier(base, hub_id)
    if hub_id.is_pinned and earlier is not None:
        return earlier
    repo = HubRepo(hub_id)
    try:
        # With something to fall back on, nobody should wait for a network that is not there.
        listing = (Retries(0) if earlier else retries).run(lambda: repo.listing)
    except StartupError as error:
        if earlier is None or error.reason != "HubUnreachable":
            raise
        logger.warning("%s; going on with %s", error, earlier)
        return earlier
    folder = base / listing.commit
    HubDownload(repo, folder, retries=retries, report=report).run()
    return folder


def _earlier(base: Path, hub_id: HubId) -> Path | None:
    """The youngest complete folder of the same revision."""
    if not base.is_dir():
        return None
    found = []
    for folder in base.iterdir():
        marker = read_marker(folder)
        if marker and marker.answers(hub_id.repo, hub_id.revision) and marker.is_intact(folder):
            found.append(folder)
    return max(found, key=lambda folder: folder.stat().st_mtime, default=None)
