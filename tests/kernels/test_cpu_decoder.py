"""The native decoder against the plain one, for shapes that no model has.

What cuts, company and threads may not change is in test_cpu_decoder_bits.py.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refectory_kernels.cpu_abi import Activation, Element
from refectory_kernels.cpu_decoder import CpuDecoder, DecoderShape
from refectory_kernels.cpu_level import CpuLevel
from refectory_server.testing.decoder_sequences import DecoderSequences
from refectory_server.testing.plain_decoder import plain_logits
from refectory_server.testing.random_decoder import TINY, Parts, RandomDecoder, make_decoder

FLOAT32_BOUND = 1e-4
BFLOAT16_BOUND = 0.01
"""A key or value that lies between two of bfloat16 may be rounded to either: 2^-8 of its size.
Beyond that, sums are float32 at either element."""
CHUNKS = (61, 1, 4, 1)
"""Together they end behind a tile of 64 keys."""


def tokens(model: RandomDecoder, count: int, seed: int = 5) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(model.shape.vocab_size) for _ in range(count)]


def assert_follows_plain(
    model: RandomDecoder,
    level: CpuLevel,
    chunks: tuple[int, ...] = CHUNKS,
    *,
    num_threads: int = 1,
) -> None:
    """Logits after each chunk."""
    token_ids = tokens(model, sum(chunks))
    sequences = DecoderSequences(model.load(level, num_threads), [token_ids])

    found = np.array([sequences.step({0: count})[0] for count in chunks])

    expected = plain_logits(model, token_ids)[np.cumsum(chunks) - 1]
    bound = FLOAT32_BOUND if model.shape.element is Element.FLOAT32 else BFLOAT16_BOUND
    assert np.abs(found - expected).max() < bound
    assert expected.std() > 0.1 or model.shape.vocab_size == 1


@pytest.mark.parametrize("element", Element)
@pytest.mark.parametrize("head_dim", [2, 4, 12, 24, 32, 64, 80, 96, 128, 250, 256])
def test_head_dims(level: CpuLevel, element: Element, head_dim: int) -> None:
    parts = Parts(head_norms=head_dim % 3 == 0)

    assert_follows_plain(make_decoder(1, parts, head_dim=head_dim, element=element), level)


@pytest.mark.parametrize("group_size", range(1, 18))
def test_group_sizes(level: CpuLevel, group_size: int) -> None:
    num_kv_heads = 1 + group_size % 3

    assert_follows_plain(
        make_decoder(2, num_heads=group_size * num_kv_heads, num_kv_heads=num_kv_heads), level
    )


@pytest.mark.parametrize("element", Element)
@pytest.mark.parametrize(
    ("hidden_size", "intermediate_size"), [(1, 1), (7, 13), (31, 33), (64, 17), (101, 257)]
)
@pytest.mark.parametrize("is_tied", [False, True])
def test_sizes_that_are_multiples_of_nothing(
    level: CpuLevel, element: Element, hidden_size: int, intermediate_size: int, is_tied: bool
) -> None:
    parts = Parts(is_tied=is_tied, qkv_bias=True, o_bias=True, mlp_bias=True, output_norms=True)

    assert_follows_plain(
        make_decoder(
            3,
            parts,
            hidden_size=hidden_size,
            intermediate_size=intermediate_size,
            num_layers=3,
            element=element,
        ),
        level,
    )


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("vocab_size", [1, 2, 33, 262_144])
def test_vocabularies(level: CpuLevel, vocab_size: int, is_tied: bool) -> None:
    model = make_decoder(4, Parts(is_tied=is_tied), vocab_size=vocab_size, hidden_size=20)

    assert_follows_plain(model, level, (5, 1))


@pytest.mark.parametrize("element", Element)
@pytest.mark.parametrize(
    ("parts", "overrides"),
    [
        (Parts(qkv_bias=True), {}),
        (Parts(o_bias=True), {}),
        (Parts(mlp_bias=True), {}),
        (Parts(head_norms=True), {}),
        (Parts(output_norms=True), {}),
        (Parts(is_tied=True), {}),
        (Parts(windows=(1,)), {}),
        (Parts(windows=(13, None)), {}),
        (Parts(windows=(64, 65)), {}),
        (Parts(), {"activation": Activation.GELU_TANH}),
        (Parts(), {"attention_soft_cap": 2.0}),
        (Parts(), {"logit_soft_cap": 1.5}),
        (Parts(), {"embedding_scale": 7.0}),
        (Parts(), {"attention_scale": 0.9}),
        (Parts(), {"norm_eps": 0.1}),
    ],
    ids=str,
)
def test_parts(
    level: CpuLevel, element: Element, parts: Parts, overrides: Mapping[str, Any]
) -> None:
    model = make_decoder(6, parts, element=element, **overrides)

    assert_follows_plain(model, level)

    # Each one matters: a decoder without it is another one.
    token_ids = tokens(model, 70)
    without = replace(model, parts=Parts(), shape=make_decoder(element=element).shape)
    distance = np.abs(plain_logits(model, token_ids) - plain_logits(without, token_ids)).max()
    assert distance > 0.1


@pytest.mark.parametrize("windows", [(None, 70), (512, 600)], ids=str)
@pytest.mark.parametrize("chunks", [(63, 1, 447, 1, 1, 1), (1000, 30, 1)], ids=str)
def test_contexts_and_windows_beyond_tiles_of_64_and_segments_of_512(
    level: CpuLevel, windows: tuple[int | None, ...], chunks: tuple[int, ...]
) -> None:
    model = make_decoder(7, Parts(windows=windows), num_blocks=70, num_positions=1100)

    assert_follows_plain(model, level, chunks, num_threads=3)


@pytest.mark.parametrize("element", Element)
@pytest.mark.parametrize("block_size", [16, 32, 128])
def test_many_sequences_at_once_in_blocks_of_any_size(
    level: CpuLevel, element: Element, block_size: int
) -> None:
    model = make_decoder(8, Parts(windows=(None, 50)), block_size=block_size, element=element)
    token_ids = [tokens(model, count, seed=count) for count in (1, 15, 33, 129, 200, 260)]
    expected = [plain_logits(model, ids) for ids in token_ids]
    sequences = DecoderSequences(model.load(level, 2), token_ids)
    bound = FLOAT32_BOUND if element is Element.FLOAT32 else BFLOAT16_BOUND

    for counts in (
        {3: 128, 1: 14},
        {1: 1, 4: 199, 3: 1},
        {0: 1, 2: 32, 4: 1, 5: 17},
        {5: 242, 2: 1},
        {5: 1},
    ):
        for sequence, logits in sequences.step(counts).items():
            last = sequences.num_computed[sequence] - 1
            assert np.abs(logits - expected[sequence][last]).max() < bound
    assert sequences.num_computed == [len(ids) for ids in token_ids]


def test_a_step_that_samples_nothing_still_stores(level: CpuLevel) -> None:
    """test_cpu_decoder's other steps sample every sequence; a chunk inside a prompt does not."""
    model = make_decoder(9)
    token_ids = tokens(model, 40)
    sequences = DecoderSequences(model.load(level), [token_ids, tokens(model, 9)])

    assert sequences.step({0: 39, 1: 2}, sampled=()) == {}
    (logits,) = sequences.step({0: 1, 1: 1}, sampled=(0,)).values()

    assert np.abs(logits - plain_logits(model, token_ids)[-1]).max() < FLOAT32_BOUND


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"head_dim": 3}, "head_dim is 3; allowed are even ones, 2 to 256"),
        ({"head_dim": 0}, "head_dim is 0; allowed are even ones, 2 to 256"),
        ({"head_dim": 258}, "head_dim is 258; allowed are even ones, 2 to 256"),
        ({"block_size": 24}, "block_size is 24; allowed are multiples of 16"),
        ({"block_size": 0}, "block_size is 0; allowed are multiples of 16"),
        (
            {"num_heads": 5},
            "num_heads is 5; allowed are multiples of num_kv_heads, which is 2",
        ),
    ],
    ids=str,
)
def test_shapes_that_are_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        DecoderShape(**{**TINY, **fields})


def test_arrays_that_are_refused(level: CpuLevel) -> None:
    model = make_decoder()
    decoder = CpuDecoder(level, model.shape, [None])
    layer = model.layers[0]
    cos, sin = model.rotary_tables[0]

    def add_layer(
        matrices: Mapping[str, np.ndarray[Any, Any]], vectors: Mapping[str, np.ndarray[Any, Any]]
    ) -> None:
        decoder.add_layer(
            {**layer.matrices, **matrices},
            {**layer.vectors, **vectors},
            rotary_table=0,
            window=None,
        )

    with pytest.raises(ValueError, match=r"^cos is float32 of shape \[1024, 4\]; allowed is float"):
        decoder.add_rotary_table(cos[:, :4], sin)
    with pytest.raises(ValueError, match=r"^sin is float64 of shape \[1024, 8\]; allowed is float"):
        decoder.add_rotary_table(cos, sin.astype(np.float64))
    with pytest.raises(
        ValueError,
        match=r"^o is float32 of shape \[48, 95\]; allowed is float32 of shape \[48, 96\]$",
    ):
        add_layer({"o": layer.matrices["o"][:, :95]}, {})
    with pytest.raises(ValueError, match=r"^up is uint16 of shape"):
        add_layer({"up": layer.matrices["up"].astype(np.uint16)}, {})
    with pytest.raises(ValueError, match=r"^k_bias is float32 of shape \[96\]; .* shape \[32\]$"):
        add_layer({}, {"k_bias": np.zeros(96, np.float32)})
    with pytest.raises(ValueError, match=r"^key_norm is float32 of shape \[48\]; .*shape \[16\]$"):
        add_layer({}, {"key_norm": np.zeros(48, np.float32)})
    with pytest.raises(ValueError, match=r"strides .* is not contiguous$"):
        add_layer({"q": np.asfortranarray(layer.matrices["q"])}, {})
    with pytest.raises(ValueError, match=r"^lm_head is float32 of shape \[130, 48\]"):
        decoder.set_ends(model.embedding, model.embedding[1:], model.final_norm)


def test_memory_that_cannot_be_had_is_an_error(level: CpuLevel) -> None:
    model = make_decoder(num_blocks=2**31 - 1, block_size=2**20)

    with pytest.raises(MemoryError, match=r"^out of memory$"):
        model.load(level)


def test_an_unknown_level_is_an_error(level: CpuLevel) -> None:
    """The library's own answer: its names and Python's may part."""

    class Unknown:
        value = "sse9"

    with pytest.raises(RuntimeError, match=r"^no instruction level is called sse9$"):
        CpuDecoder(Unknown(), make_decoder().shape, [None])  # type: ignore[arg-type]
