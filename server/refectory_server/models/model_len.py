"""How long a request of a model may be: what was asked for against what it was made for."""

from __future__ import annotations

from refectory_server.errors import StartupError
from refectory_server.models.decoder_spec import DecoderSpec


def max_model_len(spec: DecoderSpec, wanted: int | None) -> int:
    """Tokens of prompt and output: `wanted` (--max-model-len), else the model's own limit.

    Raises `StartupError` with reason `MaxModelLenTooLarge`.
    """
    if wanted is not None and wanted > spec.max_position:
        raise StartupError(
            f"--max-model-len is {wanted}; the model allows [1, {spec.max_position}]",
            reason="MaxModelLenTooLarge",
        )
    return wanted or spec.max_position
