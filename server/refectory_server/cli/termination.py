"""`TerminationLog`: the file in which a pod's end is explained to whoever restarts it.

Kubernetes shows the file's content as the container's termination message. Owns its form and its
limits; does not know what went wrong.
https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from refectory_server.config import DEFAULT_TERMINATION_LOG

logger = logging.getLogger(__name__)

MAX_BYTES = 2048
TERMINATION_LOG_KEY = "refectory.termination_log"
"""In a click context's `meta`: the path, as soon as a command knows it for certain."""
_FLAG = "--termination-log"
_VARIABLE = "REFECTORY_TERMINATION_LOG"
_SECRET_FLAGS = ("--api-key",)
_SECRET_VARIABLES = ("REFECTORY_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


class TerminationLog:
    """Writes `{"reason": ..., "message": ...}`; what goes wrong with that ends nothing.

    The default path is written only where the file exists, as it does in a pod; a path that was
    asked for is made.
    """

    def __init__(self, path: str, secrets: Sequence[str] = ()) -> None:
        """`secrets` never appear in the file."""
        self._path = Path(path)
        self._secrets = secrets

    @classmethod
    def of_command(
        cls, args: Sequence[str], environment: Mapping[str, str], path: str | None = None
    ) -> TerminationLog:
        """As a command line asks for it, also one that is otherwise wrong.

        `path`: what a command that could be parsed made of it
        """
        paths = _values(args, _FLAG) or [environment.get(_VARIABLE) or DEFAULT_TERMINATION_LOG]
        if path is not None:
            paths = [path]
        secrets = [value for flag in _SECRET_FLAGS for value in _values(args, flag)]
        for name in _SECRET_VARIABLES:
            secrets += environment.get(name, "").split()
        return cls(paths[-1], [secret for secret in secrets if secret])

    def write(self, reason: str, message: str) -> None:
        """`reason` is a CamelCase word, `message` one line for people."""
        for secret in self._secrets:
            message = message.replace(secret, "***")
        if str(self._path) == DEFAULT_TERMINATION_LOG and not self._path.exists():
            return
        try:
            self._path.write_bytes(termination_message(reason, message))
        except OSError as error:
            logger.warning("cannot write %s: %s", self._path, error)


def termination_message(reason: str, message: str) -> bytes:
    """The JSON, shorter than `MAX_BYTES`: the message's end is cut, at a character."""
    while True:
        data = json.dumps({"reason": reason, "message": message}, ensure_ascii=False)
        # Lone surrogates, as in file names that are not UTF-8, have no bytes.
        encoded = data.encode(errors="replace")
        excess = len(encoded) - MAX_BYTES + 1
        if excess <= 0:
            return encoded
        shorter = message.encode(errors="replace")[:-excess]
        # Escapes make the JSON longer than the text: the first cut may take more than is needed.
        message = shorter.decode(errors="ignore")


def _values(args: Sequence[str], flag: str) -> list[str]:
    """The values that `args` gives to `flag`, written with `=` or as the next argument."""
    values = []
    for index, arg in enumerate(args):
        name, has_equals, value = arg.partition("=")
        if name.replace("_", "-") != flag:
            continue
        if has_equals:
            values.append(value)
        elif index + 1 < len(args):
            values.append(args[index + 1])
    return values
