"""`RopeSpec`: rotary position embedding as data.

Knows neither how configs spell it (`rope_config`) nor how it is computed (`rope`). Lengths are
tokens.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Every frequency is divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Low frequencies are divided by `factor`, high ones kept, those between are mixed."""

    factor: float
    low_freq_factor: float
    """Low: a turn takes more than original_max_position / low_freq_factor tokens."""
    high_freq_factor: float
    """High: a turn takes fewer than original_max_position / high_freq_factor tokens."""
    original_max_position: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """As `Llama3Scaling` with a ramp over the dimensions; attention is sharpened too."""

    factor: float
    original_max_position: int
    attention_factor: float
    """Multiplies cos and sin, hence queries and keys."""
    beta_fast: float
    """Dimensions that turn more often than this over the original length are kept."""
    beta_slow: float
    """Dimensions that turn less often than this are divided by `factor`."""
    truncate: bool
    """The ramp starts and ends at whole dimensions."""


@dataclass(frozen=True, slots=True)
class GivenScaling:
    """Every frequency is divided by a factor of its own: a checkpoint brings them ready made."""

    factors: tuple[float, ...]
    """head_dim / 2 of them."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """The two halves of a head are rotated against each other."""

    theta: float
    scaling: LinearScaling | Llama3Scaling | YarnScaling | GivenScaling | None = None
