"""`SimulationProfile`: the model and machine that the simulator stands in for.

Owns the profile's fields, their ranges and how a file is read. Knows no scheduler and no tokens.
Shipped profiles lie beside this file in `profiles/`.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from msgspec import Meta

from refectory_server.config import MIN_MODEL_LEN
from refectory_server.errors import StartupError

Seconds = Annotated[float, Meta(ge=0.0, le=86400.0)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]

_PACKAGE = "refectory_server.profiles"


class StepCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Seconds of a step: a sum of four parts, each a unit cost times its count."""

    fixed: Seconds = 0.0
    """Of every step."""
    per_prefill_token: Seconds = 0.0
    """Of each token of a prompt that the step computes."""
    per_sequence: Seconds = 0.0
    """Of each request in the step."""
    per_context_token: Seconds = 0.0
    """Of each token of context that the step's requests attend to."""


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What goes wrong, to see how the rest of a system takes it. Nothing by default."""

    fail_load: str | None = None
    """Loading fails with this message."""
    crash_after_requests: Count | None = None
    """The engine process is killed at the first step after this many requests have ended."""
    hang_after_requests: Count | None = None
    """The engine stops in the middle of the first step after this many requests have ended."""


class SimulationProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One profile, as it stands in its YAML file."""

    description: str
    model: Annotated[str, Meta(min_length=1)]
    """Name in the API where the command line gives none."""
    num_blocks: Count
    """KV blocks in the pool, of --block-size tokens each."""
    max_model_len: Annotated[int, Meta(ge=MIN_MODEL_LEN, le=2**31 - 1)]
    kv_bytes_per_token: Count
    step_seconds: StepCost
    load_seconds: Seconds = 0.0
    mean_output_tokens: Annotated[int, Meta(ge=0)] = 0
    """Answers end by themselves after this many tokens on average; 0: only at their limit."""
    tokenizer: str | None = None
    """A model (embedded:// name, folder, .gguf) whose tokenizer is used; None: one token a byte."""
    faults: Faults = Faults()


def shipped_profiles() -> list[str]:
    """Names that `load_profile` knows without a file."""
    files = resources.files(_PACKAGE).iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))


def load_profile(name_or_path: str) -> SimulationProfile:
    """A shipped profile by name, or one from a file.

    Raises `StartupError` in one line that names the file, the field and what is allowed.
    """
    if name_or_path in shipped_profiles():
        text = resources.files(_PACKAGE).joinpath(f"{name_or_path}.yaml").read_text()
    else:
        try:
            text = Path(name_or_path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            names = ", ".join(shipped_profiles())
            raise _invalid(
                f"no simulation profile {name_or_path} ({error}); shipped: {names}"
            ) from error
    try:
        return msgspec.convert(yaml.safe_load(text), SimulationProfile)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise _invalid(f"simulation profile {name_or_path} is not YAML: {reason}") from error
    except msgspec.ValidationError as error:
        raise _invalid(f"simulation profile {name_or_path}: {error}") from error


def _invalid(message: str) -> StartupError:
    return StartupError(message, reason="ProfileInvalid")
