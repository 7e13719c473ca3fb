"""Sampling in the native library: arrays and numbers in, a token a row out.

Knows no requests. `SamplingRows` is also what a native step is given for the rows it samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from refectory_kernels.cpu_abi import (
    SampledTokenStruct,
    SampleStatus,
    SamplingRowStruct,
    address,
)
from refectory_kernels.cpu_level import CpuLevel
from refectory_kernels.native import last_error, load_library

_MASK_64 = 2**64 - 1
_ID_FIELDS = (
    ("num_allowed", "allowed_ids"),
    ("num_forbidden", "forbidden_ids"),
    ("num_biases", "bias_ids"),
    ("num_counts", "count_ids"),
)
_VALUE_FIELDS = (("biases", "bias_ids"), ("counts", "count_ids"))
"""One value for each id."""


def _no_ids() -> npt.NDArray[np.int32]:
    return np.empty(0, np.int32)


def _no_values() -> npt.NDArray[np.float64]:
    return np.empty(0, np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRow:
    """How one row's token is chosen. All ids are below the vocabulary's size."""

    temperature: float
    """0 means greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    """Any 64-bit integer, signed or not."""
    position: int = 0
    """Of the token to be drawn in its sequence."""
    allowed_ids: npt.NDArray[np.int32] = field(default_factory=_no_ids)
    """The only tokens that may be chosen; empty: all."""
    forbidden_ids: npt.NDArray[np.int32] = field(default_factory=_no_ids)
    bias_ids: npt.NDArray[np.int32] = field(default_factory=_no_ids)
    """Distinct."""
    biases: npt.NDArray[np.float64] = field(default_factory=_no_values)
    """[len(bias_ids)]"""
    count_ids: npt.NDArray[np.int32] = field(default_factory=_no_ids)
    """The distinct tokens that penalties are about."""
    counts: npt.NDArray[np.float64] = field(default_factory=_no_values)
    """[len(count_ids)], how often each is in the output."""
    num_logprobs: int | None = None
    """Most probable tokens to tell beside the chosen one; None: no log-probabilities at all."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """By the model's own logits."""

    logprob: float
    rank: int
    """1: the most probable."""
    top: tuple[tuple[int, float], ...]
    """(id, log-probability), the most probable first; of equal ones the smallest id."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    status: SampleStatus
    token_id: int
    """Means something with SAMPLED only."""
    logprobs: TokenLogprobs | None


class SamplingRows:
    """Rows as the library reads them, and the tokens that it writes.

    Raises `ValueError`, naming field and value, for an id out of range or arrays that do not fit
    each other.
    """

    def __init__(self, rows: Sequence[SamplingRow], vocab_size: int) -> None:
        num_top = [min(row.num_logprobs or 0, vocab_size) for row in rows]
        self._ends = np.cumsum([0, *num_top])
        self._top_ids = np.empty(self._ends[-1], np.int32)
        self._top_logprobs = np.empty(self._ends[-1], np.float64)
        self._rows = rows  # their arrays are borrowed
        self.structs = (SamplingRowStruct * len(rows))()
        self.tokens = (SampledTokenStruct * len(rows))()
        for struct, row, num, start in zip(
            self.structs, rows, num_top, self._ends.tolist(), strict=False
        ):
            _fill(struct, row, vocab_size)
            struct.num_logprobs = -1 if row.num_logprobs is None else num
            if num > 0:
                struct.top_ids = address(self._top_ids[start:])
                struct.top_logprobs = address(self._top_logprobs[start:])

    def results(self) -> list[SampledToken]:
        """What the library wrote."""
        return [
            SampledToken(SampleStatus(token.status), token.token_id, self._logprobs(index, token))
            for index, token in enumerate(self.tokens)
        ]

    def _logprobs(self, index: int, token: SampledTokenStruct) -> TokenLogprobs | None:
        if self._rows[index].num_logprobs is None or token.status != SampleStatus.SAMPLED:
            return None
        span = slice(self._ends[index], self._ends[index + 1])
        top = zip(self._top_ids[span].tolist(), self._top_logprobs[span].tolist(), strict=True)
        return TokenLogprobs(token.logprob, token.rank, tuple(top))


def sample(
    logits: npt.NDArray[np.float32], rows: Sequence[SamplingRow], level: CpuLevel
) -> list[SampledToken]:
    """A token for each row. Depends on nothing but that row.

    logits: [num_rows, vocab_size], contiguous, any values, left as they are
    level: one that this processor runs
    """
    if logits.dtype != np.float32 or logits.ndim != 2 or len(logits) != len(rows):
        raise ValueError(
            f"logits are {logits.dtype} of shape {logits.shape}; "
            f"allowed is float32 of shape [{len(rows)}, vocab_size]"
        )
    packed = SamplingRows(rows, logits.shape[1])
    sample_packed(logits, packed, level)
    return packed.results()


def sample_packed(logits: npt.NDArray[np.float32], rows: SamplingRows, level: CpuLevel) -> None:
    """The same for rows made for these logits; the tokens are written to `rows`."""
    library = load_library()
    if library is None:
        raise RuntimeError("refectory_kernels was built without its native library")
    num_rows, vocab_size = logits.shape
    if library.refectory_sample(
        level.value.encode(),
        address(logits),
        num_rows,
        vocab_size,
        rows.structs,
        rows.tokens,
    ):
        raise last_error(library)


def _fill(struct: SamplingRowStruct, row: SamplingRow, vocab_size: int) -> None:
    struct.temperature = row.temperature
    struct.top_p = row.top_p
    struct.top_k = row.top_k
    struct.min_p = row.min_p
    struct.presence_penalty = row.presence_penalty
    struct.frequency_penalty = row.frequency_penalty
    struct.repetition_penalty = row.repetition_penalty
    struct.seed = row.seed & _MASK_64
    struct.position = row.position
    for count_name, ids_name in _ID_FIELDS:
        ids = getattr(row, ids_name)
        if len(ids) > 0:
            _check_ids(ids_name, ids, vocab_size)
            setattr(struct, count_name, len(ids))
            setattr(struct, ids_name, address(ids))
    for values_name, ids_name in _VALUE_FIELDS:
        values, ids = getattr(row, values_name), getattr(row, ids_name)
        if len(values) != len(ids) or values.dtype != np.float64:
            raise ValueError(
                f"{values_name} are {len(values)} of {values.dtype}; allowed is float64, "
                f"one for each of {len(ids)} {ids_name}"
            )
        if len(values) > 0:
            setattr(struct, values_name, address(values))


def _check_ids(name: str, ids: npt.NDArray[np.int32], vocab_size: int) -> None:
    if ids.dtype != np.int32:
        raise ValueError(f"{name} are {ids.dtype}; allowed is int32")
    for value in (ids.min(), ids.max()):
        if not 0 <= value < vocab_size:
            raise ValueError(f"{name} has {value}; allowed is [0, {vocab_size - 1}]")
