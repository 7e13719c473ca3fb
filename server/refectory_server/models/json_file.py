"""A JSON object from one of a model's files. Knows no file's meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from refectory_server.errors import StartupError


def read_json_object(path: Path, reason: str) -> dict[str, Any]:
    """Raises `StartupError` with `reason` for a file that is unreadable or holds anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error}", reason=reason) from error
    except (ValueError, RecursionError) as error:
        raise StartupError(f"{path} is not valid JSON: {error}", reason=reason) from error
    if not isinstance(value, dict):
        raise StartupError(f"{path} holds a {type(value).__name__}, not an object", reason=reason)
    return value
