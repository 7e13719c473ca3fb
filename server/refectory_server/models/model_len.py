"""How long a request of a model may be: what was asked for against what it was made for."""

from __future__ import annotations

from refectory_server.config import MIN_MODEL_LEN
from refectory_server.errors import StartupError
from refectory_server.models.decoder_spec import DecoderSpec


def max_model_len(spec: DecoderSpec, wanted: int | None) -> int:
    """Tokens of prompt and output: `wanted` (--max-model-len), else the model's own limit.

    Raises `StartupError` with reason `MaxModelLenTooLarge`, or `ModelInvalid` for a model that
    could answer nothing.
    """
    if spec.max_position < MIN_MODEL_LEN:
        raise StartupError(
            f"the model's limit is {spec.max_position} token; at least {MIN_MODEL_LEN} are needed, "
            "one of prompt and one of output",
            reason="ModelInvalid",
        )
    if wanted is not None and wanted > spec.max_position:
        raise StartupError(
            f"--max-model-len is {wanted}; the model allows [{MIN_MODEL_LEN}, {spec.max_position}]",
            reason="MaxModelLenTooLarge",
        )
    return wanted or spec.max_position
