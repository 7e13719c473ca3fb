"""Random numbers that are a function of (seed, position) and of nothing else.

Philox4x32-10 of Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3": a bijection
of a 128-bit counter under a 64-bit key. No state, so no order of requests can change a number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)
_DROPPED_BITS = np.uint64(64 - 53)

Words = npt.NDArray[np.uint64]
"""32-bit words, held in 64 bits so that a product keeps all of its bits."""


def philox4x32(counter: Words, key: Words) -> Words:
    """counter: [n, 4], key: [n, 2]; returns [n, 4]. All values below 2^32."""
    c0, c1, c2, c3 = counter.T
    k0, k1 = key.T
    for _ in range(_ROUNDS):
        low_product, high_product = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (high_product >> _WORD) ^ c1 ^ k0,
            high_product & _LOW,
            (low_product >> _WORD) ^ c3 ^ k1,
            low_product & _LOW,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return np.stack((c0, c1, c2, c3), axis=1)


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each pair, with 53 random bits.

    seeds: any 64-bit integers, signed or not: the key
    positions: indices of the tokens to be drawn in their sequences, below 2^64: the counter
    """
    seed = np.array([value & (2**64 - 1) for value in seeds], dtype=np.uint64)
    position = np.array(positions, dtype=np.uint64)
    zero = np.zeros_like(position)
    counter = np.stack((position & _LOW, position >> _WORD, zero, zero), axis=1)
    key = np.stack((seed & _LOW, seed >> _WORD), axis=1)
    words = philox4x32(counter, key)
    bits = words[:, 0] | words[:, 1] << _WORD
    return (bits >> _DROPPED_BITS).astype(np.float64) * 2.0**-53
