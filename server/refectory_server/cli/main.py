"""`refectory`: the command group. Each command lives in a module of its own.

The only place that turns a fatal error into a line on standard error, a termination message and
an exit code.
"""

from __future__ import annotations

import os
from typing import Any

import click

from refectory_server.cli.bench import bench
from refectory_server.cli.download import download
from refectory_server.cli.serve import serve
from refectory_server.cli.termination import TERMINATION_LOG_KEY, TerminationLog
from refectory_server.errors import EngineDead, StartupError
from refectory_server.version import __version__


class Program(click.Group):
    """Explains its end wherever it is not the user's own wish."""

    def invoke(self, ctx: click.Context) -> Any:
        args = tuple(ctx.args)

        def log(reason: str, message: str) -> None:
            path = ctx.meta.get(TERMINATION_LOG_KEY)
            TerminationLog.of_command(args, os.environ, path).write(reason, message)

        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            log("InvalidFlag", error.format_message())
            raise
        except (StartupError, EngineDead) as error:
            log(error.reason, str(error))
            click.echo(f"refectory: {error}", err=True)
            ctx.exit(1)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise  # click's own way of ending, `--help` among it
        except Exception as error:
            # Its text could hold anything; the traceback on standard error has the rest.
            log("InternalError", f"{type(error).__name__}; see the log")
            raise


@click.group(cls=Program, context_settings={"help_option_names": ["--help", "-h"]})
@click.version_option(__version__, prog_name="refectory")
def main() -> None:
    """Refectory: serve large language models."""


main.add_command(serve)
main.add_command(download)
main.add_command(bench)
