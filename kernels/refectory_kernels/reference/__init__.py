"""Every op in plain torch: the specification, and the executor of last resort on any device."""

from refectory_kernels.reference.block_copy import block_copy
from refectory_kernels.reference.gelu_tanh_mul import gelu_tanh_mul
from refectory_kernels.reference.kv_cache_store import kv_cache_store
from refectory_kernels.reference.paged_attention import paged_attention
from refectory_kernels.reference.rms_norm import add_rms_norm, rms_norm
from refectory_kernels.reference.rotary import rotary, rotary_tables
from refectory_kernels.reference.sampling import (
    apply_min_p,
    apply_top_k,
    apply_top_p,
    draw,
    relative_probabilities,
)
from refectory_kernels.reference.silu_mul import silu_mul

__all__ = [
    "add_rms_norm",
    "rms_norm",
    "rotary",
    "rotary_tables",
    "silu_mul",
    "gelu_tanh_mul",
    "kv_cache_store",
    "paged_attention",
    "block_copy",
    "relative_probabilities",
    "apply_min_p",
    "apply_top_k",
    "apply_top_p",
    "draw",
]
