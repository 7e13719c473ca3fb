"""Environment variables that look like ours and are not: a misspelt one would be ignored silently.

Kubernetes puts variables into a pod for each Service of its namespace; those of a Service called
`refectory` or `refectory-...` have our prefix and are nobody's mistake.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable, Mapping

import click

from refectory_server.cli.options import ENVIRONMENT_PREFIX

logger = logging.getLogger(__name__)

CPU_LEVEL_VARIABLE = "REFECTORY_CPU_LEVEL"
"""The one that no flag stands for."""

_SERVICE_LINK = re.compile(
    r"\w+_SERVICE_(HOST|PORT(_\w+)?)=.*|\w+_PORT(_\d+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://.*"
    r"|\w+_PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=.*",
    re.DOTALL,
)


def log_unknown_variables(params: Iterable[click.Parameter], environ: Mapping[str, str]) -> None:
    """A warning for each; the values are left out, they may be keys."""
    meaning = {str(p.envvar): f"{p.envvar}, for {p.opts[-1]}" for p in params if p.envvar}
    meaning[CPU_LEVEL_VARIABLE] = CPU_LEVEL_VARIABLE
    # Compared without the prefix, which would make any two alike.
    known = [name.removeprefix(ENVIRONMENT_PREFIX) for name in meaning]
    for name, value in sorted(environ.items()):
        is_ours = name.startswith(ENVIRONMENT_PREFIX) and name not in meaning
        if is_ours and not _SERVICE_LINK.fullmatch(f"{name}={value}"):
            near = difflib.get_close_matches(name.removeprefix(ENVIRONMENT_PREFIX), known, 1)
            hint = f"; did you mean {meaning[ENVIRONMENT_PREFIX + near[0]]}?" if near else ""
            logger.warning("the environment variable %s has no effect%s", name, hint)
