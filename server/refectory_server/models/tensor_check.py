"""Whether a checkpoint has the tensors that its config asks for. Knows no files and no torch."""

from __future__ import annotations

import logging
import re
from collections.abc import Set

from refectory_server.errors import StartupError
from refectory_server.models.tensor_shapes import LM_HEAD

logger = logging.getLogger(__name__)

_ROPE_TENSORS = re.compile(r"\.rotary_emb\.inv_freq$|^rope_freqs\.weight$")
"""Frequencies that follow from the config, and factors that are read as part of it."""
_MAX_NAMES_SHOWN = 5


def check_names(model: str, present: Set[str], expected: Set[str]) -> None:
    """Raises `StartupError` with reason `ModelInvalid` for missing or unexpected tensors."""
    missing = sorted(expected - present)
    if missing:
        raise _invalid(f"{model} lacks {_listed(missing)}")
    extra = sorted(name for name in present - expected if not _ROPE_TENSORS.search(name))
    if extra == [LM_HEAD]:
        logger.warning("%s ties its embeddings; its %s is not used", model, LM_HEAD)
    elif extra:
        raise _invalid(f"{model} has {_listed(extra)}, which its config gives no place")


def check_tensor(
    model: str,
    name: str,
    shape: tuple[int, ...],
    expected: tuple[int, ...],
    *,
    float_type: bool,
    dtype: object,
) -> None:
    """Raises `StartupError` with reason `ModelInvalid` for another shape, or no float type."""
    if shape != expected:
        raise _invalid(
            f"tensor {name} of {model} has the shape {list(shape)}; "
            f"the config asks for {list(expected)}"
        )
    if not float_type:
        raise _invalid(f"tensor {name} of {model} is {dtype}, not a float type")


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES_SHOWN])
    more = len(names) - _MAX_NAMES_SHOWN
    if more > 0:
        return f"the tensors {shown} and {more} more"
    return f"the tensor {shown}" if len(names) == 1 else f"the tensors {shown}"


def _invalid(message: str) -> StartupError:
    return StartupError(message, reason="ModelInvalid")
