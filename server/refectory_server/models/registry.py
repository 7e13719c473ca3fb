"""Which families are served: architecture name to the function that reads its config.

A new family is an entry here and a function in a file of its own. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refectory_server.errors import StartupError
from refectory_server.models.config_reader import ConfigReader
from refectory_server.models.decoder_spec import DecoderSpec
from refectory_server.models.gemma3 import read_gemma3_spec
from refectory_server.models.llama import read_llama_spec
from refectory_server.models.mistral import read_mistral_spec
from refectory_server.models.qwen import read_qwen2_spec, read_qwen3_spec

FAMILIES: dict[str, Callable[[ConfigReader, str], DecoderSpec]] = {
    "Gemma3ForCausalLM": read_gemma3_spec,
    "LlamaForCausalLM": read_llama_spec,
    "MistralForCausalLM": read_mistral_spec,
    "Qwen2ForCausalLM": read_qwen2_spec,
    "Qwen3ForCausalLM": read_qwen3_spec,
}
_MODEL_TYPES = {
    "gemma3_text": "Gemma3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_MAX_LAYERS = 10_000
"""Each one's names and shapes are made before a single weight is looked for."""


def read_decoder_spec(hf_config: dict[str, Any]) -> DecoderSpec:
    """The spec of a Hugging Face config, found by `architectures`, else by `model_type`.

    Raises `StartupError`: `UnsupportedArchitecture`, `UnsupportedModelFeature`, `ModelInvalid`.
    """
    architecture = _architecture(hf_config)
    if architecture not in FAMILIES:
        raise StartupError(
            f"the model's architecture {architecture} is not supported; "
            f"supported: {', '.join(sorted(FAMILIES))}",
            reason="UnsupportedArchitecture",
        )
    config = ConfigReader(hf_config)
    config.int_from(1, "num_hidden_layers", default=1, maximum=_MAX_LAYERS)
    return FAMILIES[architecture](config, architecture)


def _architecture(hf_config: dict[str, Any]) -> str:
    names = hf_config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise StartupError(
            f"the model's config has architectures {names!r}; allowed is a list of names",
            reason="ModelInvalid",
        )
    if names:
        return str(next((name for name in names if name in FAMILIES), names[0]))
    model_type = str(hf_config.get("model_type"))
    return _MODEL_TYPES.get(model_type, model_type)
