"""The `refectory-operator` console script.

Owns the command line and nothing else. Imports only the standard library, so that `--help` answers
at once wherever the package is installed.
"""

from __future__ import annotations

import argparse
import sys

from refectory_operator import __version__

_DESCRIPTION = (
    "The Kubernetes operator of Refectory: it will turn LLMDeployment objects into pods that run "
    "`refectory serve`, keep them healthy, roll and drain them, and scale them on their queues."
)
_NOT_YET = "This version has no controller yet: without an option it says so and exits with 2."


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code; `--help` and `--version` exit by themselves."""
    parser = argparse.ArgumentParser(
        prog="refectory-operator", description=_DESCRIPTION, epilog=_NOT_YET
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.parse_args(argv)
    print(f"refectory-operator {__version__}: {_NOT_YET}", file=sys.stderr)
    print(
        "It watches nothing and changes nothing. `refectory serve` runs a server by hand.",
        file=sys.stderr,
    )
    return 2
