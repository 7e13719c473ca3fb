"""`refectory`: the command group. Each command lives in a module of its own."""

from __future__ import annotations

import click

from refectory_server import __version__
from refectory_server.cli.serve import serve


@click.group(context_settings={"help_option_names": ["--help", "-h"]})
@click.version_option(__version__, prog_name="refectory")
def main() -> None:
    """Refectory: serve large language models."""


main.add_command(serve)
