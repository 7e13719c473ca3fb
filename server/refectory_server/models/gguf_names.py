"""GGUF tensor names and Hugging Face's for the same tensors. Knows no files and no torch."""

from __future__ import annotations

from refectory_server.models.decoder_spec import DecoderSpec
from refectory_server.models.tensor_shapes import LM_HEAD, expected_shapes


def hf_names(spec: DecoderSpec) -> dict[str, str]:
    """GGUF tensor name to Hugging Face name, for every tensor a file of `spec` may hold.

    The names are qwen3's: llama's and qwen2's are among them.
    """
    import gguf

    name_map = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, spec.num_layers)
    return {
        name_map.get_name(name, try_suffixes=(".weight", ".bias")): name
        for name in [*expected_shapes(spec), LM_HEAD]
    }
