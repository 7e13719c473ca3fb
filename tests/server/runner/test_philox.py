"""Philox4x32-10 against the known answers of its authors (Random123), and the uniforms."""

from __future__ import annotations

import numpy as np
import pytest

from refectory_server.runner.philox import philox4x32, uniforms

ZEROS, ONES = 0x00000000, 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([ZEROS] * 4, [ZEROS] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([ONES] * 4, [ONES] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    words = philox4x32(np.array([counter], dtype=np.uint64), np.array([key], dtype=np.uint64))

    assert words.tolist() == [expected]


def test_uniform_takes_the_upper_53_of_the_first_two_words() -> None:
    bits = (0xE169C58D << 32 | 0x6627E8D5) >> 11

    assert uniforms([0], [0]).tolist() == [bits / 2**53]


def test_seed_and_position_fill_key_and_counter() -> None:
    """Words are used low first, in key and counter alike."""
    seed, position = 0x0123456789ABCDEF, 0x1122334455667788
    counter = np.array([[0x55667788, 0x11223344, 0, 0]], dtype=np.uint64)
    key = np.array([[0x89ABCDEF, 0x01234567]], dtype=np.uint64)
    low, high = philox4x32(counter, key)[0, :2].tolist()

    assert uniforms([seed], [position]).tolist() == [((high << 32 | low) >> 11) / 2**53]


def test_negative_seed_is_its_bits() -> None:
    assert uniforms([-1], [5]).tolist() == uniforms([2**64 - 1], [5]).tolist()


def test_rows_are_independent() -> None:
    seeds, positions = [3, 3, 4, 2**63 - 1], [0, 1, 0, 7]

    together = uniforms(seeds, positions).tolist()

    alone = [uniforms([s], [p])[0] for s, p in zip(seeds, positions, strict=True)]
    assert together == alone
    assert len(set(together)) == 4
    assert all(0.0 <= number < 1.0 for number in together)
