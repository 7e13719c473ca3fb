"""How configs spell rotary position embedding, as `RopeSpec`.

transformers 5 writes `rope_parameters`; older configs `rope_theta` and `rope_scaling`. The names
and the values that are filled in are transformers'. Knows no family.
"""

from __future__ import annotations

import math

from refectory_server.errors import StartupError
from refectory_server.models.config_reader import ConfigReader
from refectory_server.models.rope_spec import (
    GivenScaling,
    LinearScaling,
    Llama3Scaling,
    RopeSpec,
    YarnScaling,
)

DEFAULT_THETA = 10_000.0
GIVEN_FACTORS = "frequency_factors"
"""Our own name: no config spells this one, but a GGUF file holds it as a tensor."""

_COMMON_FIELDS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_FIELDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "beta_fast",
        "beta_slow",
        "truncate",
    ),
    GIVEN_FACTORS: (GIVEN_FACTORS,),
}


def read_rope(config: ConfigReader) -> RopeSpec:
    """The rope of a model whose layers all have the same."""
    refuse_foreign_rope_fields(config)
    group = config.group("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    return read_rope_group(group, config, config.positive_float("rope_theta", DEFAULT_THETA))


def refuse_foreign_rope_fields(config: ConfigReader) -> None:
    """Refuse what other families say outside the groups, and two groups at once."""
    config.only("partial_rotary_factor", 1.0)
    config.absent("original_max_position_embeddings")
    if config.has("rope_parameters"):
        config.absent("rope_scaling")


def read_rope_group(group: ConfigReader, config: ConfigReader, theta: float) -> RopeSpec:
    """`theta` counts where the group names none."""
    kind_field = "rope_type" if group.has("rope_type") else "type"
    kind = group.choice(kind_field, tuple(_FIELDS), default="default")
    group.only("type", kind)
    group.known((*_COMMON_FIELDS, *_FIELDS[kind]))
    group.only("partial_rotary_factor", 1.0)
    theta = group.positive_float("rope_theta", default=theta)
    match kind:
        case "linear":
            return RopeSpec(theta, LinearScaling(group.positive_float("factor")))
        case "llama3":
            return RopeSpec(theta, _read_llama3(group, config))
        case "yarn":
            return RopeSpec(theta, _read_yarn(group, config))
        case "frequency_factors":
            return RopeSpec(theta, GivenScaling(group.positive_floats(GIVEN_FACTORS)))
    return RopeSpec(theta)


def _read_llama3(group: ConfigReader, config: ConfigReader) -> Llama3Scaling:
    scaling = Llama3Scaling(
        factor=group.positive_float("factor"),
        low_freq_factor=group.positive_float("low_freq_factor"),
        high_freq_factor=group.positive_float("high_freq_factor"),
        original_max_position=_original_max_position(group, config),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise StartupError(
            f"the model's config has high_freq_factor {scaling.high_freq_factor}; allowed is a "
            f"number above its low_freq_factor {scaling.low_freq_factor}",
            reason="ModelInvalid",
        )
    return scaling


def _read_yarn(group: ConfigReader, config: ConfigReader) -> YarnScaling:
    original = _original_max_position(group, config)
    factor = group.positive_float(
        "factor", default=config.positive_int("max_position_embeddings") / original
    )
    if group.has("attention_factor"):
        attention_factor = group.positive_float("attention_factor")
    elif group.has("mscale") and group.has("mscale_all_dim"):
        scales = [group.positive_float(field) for field in ("mscale", "mscale_all_dim")]
        attention_factor = _sharpening(factor, scales[0]) / _sharpening(factor, scales[1])
    else:
        attention_factor = _sharpening(factor)
    return YarnScaling(
        factor=factor,
        original_max_position=original,
        attention_factor=attention_factor,
        beta_fast=group.positive_float("beta_fast", default=32.0),
        beta_slow=group.positive_float("beta_slow", default=1.0),
        truncate=group.boolean("truncate", default=True),
    )


def _sharpening(factor: float, weight: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _original_max_position(group: ConfigReader, config: ConfigReader) -> int:
    return group.positive_int(
        "original_max_position_embeddings", default=config.positive_int("max_position_embeddings")
    )
