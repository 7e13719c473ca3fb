"""Which layers have a sliding window: `layer_types`, or a family's older way of saying it.

Knows no family.
"""

from __future__ import annotations

from collections.abc import Sequence

from refectory_server.errors import StartupError
from refectory_server.models.config_reader import ConfigReader

_FULL = "full_attention"
_SLIDING = "sliding_attention"


def read_layer_windows(
    config: ConfigReader, are_sliding: Sequence[bool], window: int | None
) -> list[int | None]:
    """The window of every layer, in tokens; None where it sees everything.

    are_sliding: one a layer; counts where the config has no `layer_types`
    window: of the sliding layers; None: the config has none
    """
    if config.has("layer_types"):
        types = config.choices("layer_types", (_FULL, _SLIDING), len(are_sliding))
        are_sliding = [kind == _SLIDING for kind in types]
    if window is None and any(are_sliding):
        raise StartupError(
            f"the model's config has {_SLIDING} layers, but no sliding_window; "
            "allowed is an integer from 1",
            reason="ModelInvalid",
        )
    return [window if is_sliding else None for is_sliding in are_sliding]
