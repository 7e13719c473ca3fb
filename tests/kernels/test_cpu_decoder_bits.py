"""One arithmetic for a row: whatever is computed beside it, its bits are the same.

Keys and values are seen through the logits of the tokens after them. Every block holds NaN where
nothing was stored, and a sequence of NaN takes part: reading anything of theirs would show.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refectory_kernels.cpu_abi import Element
from refectory_kernels.cpu_level import CpuLevel
from refectory_server.testing.decoder_sequences import DecoderSequences, Logits
from refectory_server.testing.random_decoder import (
    Parts,
    RandomDecoder,
    draw_decoder,
    make_decoder,
)

LENGTHS = (1, 2, 15, 16, 17, 40, 63, 64, 65, 100, 130, 200)
LONG = (513, 580)
"""Beyond a segment of 512 keys."""


def bits(logits: Logits) -> list[int]:
    """Without the token whose embedding is NaN: a tied lm_head has a NaN for it."""
    found: list[int] = logits[:-1].view(np.uint32).tolist()
    return found


def draw_tokens(rng: random.Random, model: RandomDecoder, count: int) -> list[int]:
    return [rng.randrange(model.shape.vocab_size - 1) for _ in range(count)]


@pytest.mark.parametrize("element", Element)
@settings(max_examples=25)
@given(rng=st.randoms(use_true_random=True))
def test_any_cut_company_order_and_team(
    level: CpuLevel, element: Element, rng: random.Random
) -> None:
    model = draw_decoder(rng, element=element, has_nan_token=True, num_blocks=150)
    lengths = [rng.choice(LENGTHS) for _ in range(rng.randint(0, 4))]
    lengths.append(rng.choice(LONG) if rng.random() < 0.2 else rng.choice(LENGTHS))
    token_ids = [draw_tokens(rng, model, length) for length in lengths]
    by_token = DecoderSequences(
        model.load(level), token_ids, nan_token=model.nan_token, seed=rng.randrange(99)
    )
    alone = [by_token.all_logits(i) for i in range(len(token_ids))]
    nans = len(token_ids)
    company = DecoderSequences(
        model.load(level, num_threads=rng.randint(1, 3)),
        [*token_ids, [model.shape.vocab_size - 1] * 200],
        nan_token=model.nan_token,
        seed=rng.randrange(99),
    )

    while unfinished := [i for i in range(nans) if company.num_computed[i] < lengths[i]]:
        counts = {}
        for i in rng.sample(unfinished, rng.randint(1, len(unfinished))):
            rest = lengths[i] - company.num_computed[i]
            counts[i] = rng.choice([1, min(2, rest), rest, rng.randint(1, rest)])
        if company.num_computed[nans] < 150 and rng.random() < 0.3:
            counts[nans] = rng.randint(1, 50)
            counts = dict(rng.sample([*counts.items()], len(counts)))
        if rng.random() < 0.1:
            company.move(rng.choice(unfinished))
        elif rng.random() < 0.02:
            company.restart(rng.choice(unfinished))
            continue
        for i, logits in company.step(counts).items():
            if i == nans:
                assert np.isnan(logits).all()
            else:
                assert bits(logits) == bits(alone[i][company.num_computed[i] - 1])


@pytest.mark.parametrize("element", Element)
@pytest.mark.parametrize("hidden_size", [32, 33, 47])
@pytest.mark.parametrize("is_tied", [False, True])
def test_a_nan_leaves_nothing_behind(
    level: CpuLevel, element: Element, hidden_size: int, is_tied: bool
) -> None:
    """Neither in the rows of its step nor in their padding."""
    parts = Parts(output_norms=True, head_norms=True, is_tied=is_tied, has_nan_token=True)
    model = make_decoder(
        1, parts, hidden_size=hidden_size, head_dim=10, intermediate_size=41, element=element
    )
    token_ids = list(range(40))
    nans = [model.shape.vocab_size - 1] * 40
    expected = bits(DecoderSequences(model.load(level), [token_ids]).step({0: 40})[0])
    sequences = DecoderSequences(model.load(level), [token_ids, nans])

    assert np.isnan(sequences.step({1: 40})[1]).all()
    assert bits(sequences.step({0: 40})[0]) == expected


@pytest.mark.parametrize("output_norms", [False, True])
def test_a_team_that_is_out_of_step(level: CpuLevel, output_norms: bool) -> None:
    """Four threads on any number of processors, many times: no row is read before it is there."""
    parts = Parts(output_norms=output_norms, head_norms=True, windows=(None, 20))
    model = make_decoder(2, parts, num_blocks=200, num_layers=3)
    token_ids = [[i + j for j in range(50)] for i in range(6)]
    found = set()
    for num_threads in (1, *[4] * 25):
        sequences = DecoderSequences(model.load(level, num_threads), token_ids)
        steps = [dict.fromkeys(range(6), count) for count in (5, 1, 40, 1)]
        found.add(str([[bits(row) for row in sequences.step(s).values()] for s in steps]))
    assert len(found) == 1
