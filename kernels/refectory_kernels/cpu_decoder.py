"""`CpuDecoder`: a decoder in the native library, one call a step.

Owns the handle and checks what crosses the boundary. Knows shapes and arrays only: neither
requests nor where weights come from. bfloat16 arrays are their bits, as uint16.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from refectory_kernels.cpu_abi import (
    Activation,
    DecoderConfigStruct,
    Element,
    LayerWeightsStruct,
    StepStruct,
    address,
)
from refectory_kernels.cpu_level import CpuLevel
from refectory_kernels.cpu_sampling import SamplingRows
from refectory_kernels.native import last_error, load_library

KV_BLOCK_TOKENS = 16
"""The kernels' block; a caller's blocks are a multiple of it."""
MAX_HEAD_DIM = 256
_NUMPY_TYPES: dict[Element, npt.DTypeLike] = {
    Element.BFLOAT16: np.uint16,
    Element.FLOAT32: np.float32,
}

Weights = npt.NDArray[np.uint16] | npt.NDArray[np.float32]
"""[out_features, in_features] in the decoder's element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """What the program is compiled for."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    activation: Activation
    element: Element
    """Of the weights and the KV cache; everything else is float32."""
    num_blocks: int
    block_size: int
    """Tokens, a multiple of 16."""
    max_tokens: int
    """Of one step."""
    num_positions: int
    norm_eps: float
    attention_scale: float
    attention_soft_cap: float
    """0: none; so is `logit_soft_cap`."""
    logit_soft_cap: float
    embedding_scale: float

    def __post_init__(self) -> None:
        if self.head_dim % 2 or not 2 <= self.head_dim <= MAX_HEAD_DIM:
            raise ValueError(
                f"head_dim is {self.head_dim}; allowed are even ones, 2 to {MAX_HEAD_DIM}"
            )
        if self.block_size < 1 or self.block_size % KV_BLOCK_TOKENS:
            raise ValueError(
                f"block_size is {self.block_size}; allowed are multiples of {KV_BLOCK_TOKENS}"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads is {self.num_heads}; allowed are multiples of num_kv_heads, "
                f"which is {self.num_kv_heads}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Sequences lie one after another; int32 arrays throughout."""

    token_ids: npt.NDArray[np.int32]
    """[num_tokens]"""
    query_starts: npt.NDArray[np.int32]
    """[num_sequences + 1]: each one's first row; its rows are the last of its context."""
    context_lens: npt.NDArray[np.int32]
    """[num_sequences], this step's tokens included."""
    block_tables: npt.NDArray[np.int32]
    """[num_sequences, most blocks]"""
    sampled: npt.NDArray[np.int32]
    """[num_sampled]: the sequences whose last row's logits are wanted."""


def padded_head_dim(head_dim: int) -> int:
    """Dimensions that a head takes up in the KV cache: each rotary half in whole vectors."""
    return 2 * -(-head_dim // 2 // 16) * 16


class CpuDecoder:
    """Made in this order: rotary tables, layers, ends; then steps. One thread calls it.

    Raises `MemoryError` or `RuntimeError` with the library's words.
    """

    def __init__(self, level: CpuLevel, shape: DecoderShape, cpus: Sequence[int | None]) -> None:
        """cpus: one entry a thread, the processor it is bound to while it computes, or None."""
        library = load_library()
        if library is None:
            raise RuntimeError("refectory_kernels was built without its native library")
        self.shape = shape
        self._library = library
        bound = np.array([-1 if cpu is None else cpu for cpu in cpus], np.int32)
        names = {name for name, _ in DecoderConfigStruct._fields_} - {"num_threads", "cpus"}
        config = DecoderConfigStruct(
            **{name: getattr(shape, name) for name in names},
            num_threads=len(bound),
            cpus=address(bound),
        )
        handle = library.refectory_decoder_create(level.value.encode(), ctypes.byref(config))
        if not handle:
            raise last_error(library)
        self._handle: int = handle
        # Not at exit: a daemon thread may be in the middle of a step then.
        weakref.finalize(self, library.refectory_decoder_destroy, self._handle).atexit = False

    def add_rotary_table(self, cos: npt.NDArray[np.float32], sin: npt.NDArray[np.float32]) -> None:
        """cos, sin: [num_positions, head_dim / 2]. Layers name a table by its number."""
        wanted = (self.shape.num_positions, self.shape.head_dim // 2)
        _check("cos", cos, wanted, np.float32)
        _check("sin", sin, wanted, np.float32)
        self._call("add_rotary_table", address(cos), address(sin))

    def add_layer(
        self,
        matrices: Mapping[str, Weights],
        vectors: Mapping[str, npt.NDArray[np.float32]],
        *,
        rotary_table: int,
        window: int | None,
    ) -> None:
        """The next layer; its weights are copied.

        matrices: q, k, v, o, gate, up, down
        vectors: norms and biases by abi.h's names; what the family lacks is left out
        window: keys a token sees at most; None: all before it
        """
        shape = self.shape
        q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        hidden, inner = shape.hidden_size, shape.intermediate_size
        wanted: dict[str, tuple[int, ...]] = {
            "q": (q_size, hidden),
            "k": (kv_size, hidden),
            "v": (kv_size, hidden),
            "o": (hidden, q_size),
            "gate": (inner, hidden),
            "up": (inner, hidden),
            "down": (hidden, inner),
        }
        for name, matrix_shape in wanted.items():
            _check(name, matrices[name], matrix_shape, _NUMPY_TYPES[shape.element])
        for name, vector in vectors.items():
            if name.endswith("_bias"):
                size = wanted[name.removesuffix("_bias")][0]
            else:
                size = shape.head_dim if name in ("query_norm", "key_norm") else hidden
            _check(name, vector, (size,), np.float32)
        struct = LayerWeightsStruct(
            **{name: address(array) for name, array in (*matrices.items(), *vectors.items())},
            rotary_table=rotary_table,
            window=window or 0,
        )
        self._call("add_layer", ctypes.byref(struct))

    def set_ends(
        self, embedding: Weights, lm_head: Weights | None, final_norm: npt.NDArray[np.float32]
    ) -> None:
        """embedding, lm_head: [vocab_size, hidden_size]; no lm_head: it is the embedding."""
        wanted = (self.shape.vocab_size, self.shape.hidden_size)
        for name, matrix in (("embedding", embedding), ("lm_head", lm_head)):
            if matrix is not None:
                _check(name, matrix, wanted, _NUMPY_TYPES[self.shape.element])
        _check("final_norm", final_norm, (self.shape.hidden_size,), np.float32)
        head = None if lm_head is None else address(lm_head)
        self._call("set_ends", address(embedding), head, address(final_norm))

    def copy_blocks(self, sources: npt.NDArray[np.int32], targets: npt.NDArray[np.int32]) -> None:
        """Copy every layer's KV of block sources[i] to block targets[i]."""
        self._call("copy_blocks", address(sources), address(targets), len(sources))

    def step(self, step: Step, rows: SamplingRows) -> None:
        """Compute the step and choose the tokens of its sampled sequences, written to `rows`."""
        self._step(step, rows, None)

    def logits(self, step: Step) -> npt.NDArray[np.float32]:
        """Compute the step; returns the logits of its sampled sequences, [num_sampled, vocab]."""
        logits = np.empty((len(step.sampled), self.shape.vocab_size), np.float32)
        self._step(step, None, logits)
        return logits

    def _step(
        self, step: Step, rows: SamplingRows | None, logits: npt.NDArray[np.float32] | None
    ) -> None:
        struct = StepStruct(
            num_tokens=len(step.token_ids),
            num_sequences=len(step.context_lens),
            num_sampled=len(step.sampled),
            block_table_stride=step.block_tables.shape[1],
            token_ids=address(step.token_ids),
            query_starts=address(step.query_starts),
            context_lens=address(step.context_lens),
            block_tables=address(step.block_tables),
            sampled=address(step.sampled),
            rows=None if rows is None else ctypes.addressof(rows.structs),
            tokens=None if rows is None else ctypes.addressof(rows.tokens),
            logits=None if logits is None else address(logits),
        )
        self._call("step", ctypes.byref(struct))

    def _call(self, name: str, *arguments: object) -> None:
        if getattr(self._library, f"refectory_decoder_{name}")(self._handle, *arguments):
            raise last_error(self._library)


def _check(
    name: str, array: npt.NDArray[np.generic], shape: tuple[int, ...], dtype: npt.DTypeLike
) -> None:
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(
            f"{name} is {array.dtype} of shape {list(array.shape)}; "
            f"allowed is {np.dtype(dtype)} of shape {list(shape)}"
        )
