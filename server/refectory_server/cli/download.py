"""`refectory download`: a hub's model into a plain folder, for a volume that servers share.

Run by a Job in a cluster: it can be killed at any time and started again, and twice at once does no
harm. Progress is in the log and, with `--metrics-port`, on /metrics.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

import click

from refectory_server.cli.options import ENVIRONMENT_PREFIX
from refectory_server.cli.termination import TERMINATION_LOG_KEY
from refectory_server.config import DEFAULT_TERMINATION_LOG
from refectory_server.errors import StartupError
from refectory_server.log import configure_logging
from refectory_server.models.source import hub_id_of

logger = logging.getLogger(__name__)

_LOG_INTERVAL_S = 10.0


@click.command(
    short_help="Download a hub's model into a folder.",
    context_settings={
        "token_normalize_func": lambda token: token.replace("_", "-"),
        "auto_envvar_prefix": ENVIRONMENT_PREFIX.rstrip("_"),
        "show_default": True,
    },
)
@click.argument("model")
@click.option("--to", "folder", required=True, metavar="DIR", help="Folder for the files.")
@click.option("--revision", envvar="REFECTORY_REVISION", help="Branch, tag or commit; else main.")
@click.option("--max-retries", type=click.IntRange(0), default=5, help="Failures in a row.")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), help="Port for progress on /metrics."
)
@click.option("--host", default="0.0.0.0", help="Address of the metrics port.")
@click.option(
    "--termination-log",
    metavar="FILE",
    default=DEFAULT_TERMINATION_LOG,
    help="File that says in JSON why it failed; the default only where it exists.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="How much to log.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Form of the log's lines.",
)
def download(
    model: str,
    folder: str,
    revision: str | None,
    max_retries: int,
    metrics_port: int | None,
    host: str,
    termination_log: str,
    log_level: str,
    log_format: str,
) -> None:
    """Download MODEL, org/name of a hub, into a folder that `refectory serve` can be given.

    Only what serving needs: config, tokenizer, safetensors. HF_ENDPOINT names the hub, HF_TOKEN is
    sent to it. A folder that is complete already is left as it is.
    """
    click.get_current_context().meta[TERMINATION_LOG_KEY] = termination_log
    configure_logging(log_level, log_format)
    # As the first process of a container, nothing else would end it. What it has is kept.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: os._exit(128 + number))
    hub_id = hub_id_of(model, revision)
    if hub_id is None:
        raise StartupError(
            f"{model} is not a model of a hub: give org/name or hf://org/name",
            reason="ModelMissing",
        )
    # After the arguments: what follows is slow to import.
    from refectory_server.cli.download_metrics import DownloadMetrics
    from refectory_server.models.hub_download import HubDownload
    from refectory_server.models.hub_repo import HubRepo
    from refectory_server.models.retries import Retries

    metrics = DownloadMetrics()
    if metrics_port is not None:
        metrics.serve(host, metrics_port)
    started = time.monotonic()
    last_log = started

    def report(num_bytes: int, total_bytes: int) -> None:
        nonlocal last_log
        metrics.set_bytes(num_bytes, total_bytes)
        now = time.monotonic()
        if now - last_log >= _LOG_INTERVAL_S:
            last_log = now
            logger.info(
                "%d of %d bytes, %.0f %%",
                num_bytes,
                total_bytes,
                100 * num_bytes / max(total_bytes, 1),
            )

    marker, was_needed = HubDownload(
        HubRepo(hub_id), Path(folder), retries=Retries(max_retries), report=report
    ).run()
    metrics.set_done(marker.num_bytes)
    place = f"{hub_id} at {marker.commit} in {folder}"
    size = f"{len(marker.files)} files, {marker.num_bytes} bytes"
    if was_needed:
        click.echo(f"downloaded {place}: {size} in {time.monotonic() - started:.1f} s")
    else:
        click.echo(f"already complete: {place}: {size}, nothing downloaded")
