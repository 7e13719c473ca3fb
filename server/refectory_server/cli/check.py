"""`refectory serve --check`: would these arguments serve this model? Loads no weights, no torch.

For a pod that goes ahead of the others: no GPU, little memory, seconds.
"""

from __future__ import annotations

from refectory_server.api.auth import load_api_keys
from refectory_server.api.service import served_model_names
from refectory_server.config import ServerConfig
from refectory_server.errors import StartupError
from refectory_server.models.model_check import CheckedModel, check_model
from refectory_server.models.source import resolve_model
from refectory_server.simulation_profile import load_profile
from refectory_server.text_side import TextSide


def check(config: ServerConfig) -> str:
    """What would be served, in one line. Raises `StartupError` for what start would refuse."""
    load_api_keys(config.api)
    names = ", ".join(served_model_names(config.model))
    if config.simulator.simulate is not None:
        profile = load_profile(config.simulator.simulate)
        TextSide.load(config)
        if profile.faults.fail_load is not None:
            raise StartupError(profile.faults.fail_load, reason="SimulatedFault")
        return f"{names}: simulated, {profile.description}"
    model = check_model(resolve_model(config.model.model))
    text = TextSide.load(config)
    template = "a chat template" if text.chat_template else "no chat template"
    return f"{names}: {_described(model, config.model.max_model_len)}, {template}"


def _described(model: CheckedModel, wanted_model_len: int | None) -> str:
    spec = model.spec
    if wanted_model_len is not None and wanted_model_len > spec.max_position:
        raise StartupError(
            f"--max-model-len is {wanted_model_len}; the model allows [1, {spec.max_position}]",
            reason="MaxModelLenTooLarge",
        )
    max_model_len = wanted_model_len or spec.max_position
    return f"{spec.architecture}, {model.num_tensors} tensors, max_model_len {max_model_len}"
