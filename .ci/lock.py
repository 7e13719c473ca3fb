"""Turns pip's installation report (standard input) into constraints.txt (standard output).

Owns the file's form only: what to resolve is `make lock`'s decision. Names and versions are kept,
nothing of where they came from.
"""

from __future__ import annotations

import json
import re
import sys

HEADER = """\
# Exact versions of everything that `pip install -e '.[dev]'` brings, which is every extra at once.
# Written by `make lock`, which resolves anew from pyproject.toml; never edited by hand.
# Used by `make serve` and `make test`; by hand: pip install -c constraints.txt -e '.[server]'
"""


def main() -> None:
    report = json.load(sys.stdin)
    pins = {
        re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower(): item["metadata"]["version"]
        for item in report["install"]
    }
    del pins["refectory"]
    sys.stdout.write(HEADER)
    for name in sorted(pins):
        sys.stdout.write(f"{name}=={pins[name]}\n")


if __name__ == "__main__":
    main()
