"""Native sampling against the torch reference: tokens, statuses, log-probabilities.

Weights are float there and double here, so a token is compared by where the row's random number
falls: within ERROR of the token's own stretch of the reference's CDF. Where it is further from
every border than that, only one token will do.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refectory_kernels.cpu_abi import SampleStatus
from refectory_kernels.cpu_level import CpuLevel, available_levels
from refectory_kernels.cpu_sampling import SampledToken, SamplingRow, sample
from refectory_kernels.reference import (
    apply_min_p,
    apply_top_k,
    apply_top_p,
    relative_probabilities,
)
from refectory_server.runner.logprobs import token_logprobs
from refectory_server.runner.philox import uniforms

ERROR = 1e-5
INF, NAN = math.inf, math.nan
Logits = npt.NDArray[np.float32]


def ids(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


def values(*values: float) -> npt.NDArray[np.float64]:
    return np.array(values, np.float64)


def adjusted(logits: Logits, row: SamplingRow) -> torch.Tensor:
    """Masks and bias, then penalties, in float64."""
    result = torch.from_numpy(logits).double()
    if len(row.allowed_ids):
        masked = torch.full_like(result, -INF)
        masked[row.allowed_ids] = result[row.allowed_ids]
        result = masked
    result[row.forbidden_ids] = -INF
    result[row.bias_ids] += torch.from_numpy(row.biases)
    counted, counts = result[row.count_ids], torch.from_numpy(row.counts)
    counted = torch.where(
        counted > 0, counted / row.repetition_penalty, counted * row.repetition_penalty
    )
    counted -= row.frequency_penalty * counts
    counted -= row.presence_penalty * (counts > 0)
    result[row.count_ids] = counted
    return result


def weights_of(logits: torch.Tensor, row: SamplingRow) -> torch.Tensor:
    """[vocab_size], float64: 0 for a token that may not be drawn."""

    def one(value: float) -> torch.Tensor:
        return torch.tensor([value], dtype=torch.float64)

    weights = relative_probabilities(logits.unsqueeze(0), one(row.temperature))
    if row.min_p > 0:
        weights = apply_min_p(weights, one(row.min_p))
    if 0 < row.top_k < weights.shape[1]:
        weights = apply_top_k(weights, torch.tensor([row.top_k]))
    if row.top_p < 1:
        weights = apply_top_p(weights, one(row.top_p))
    return weights[0]


def check(logits: Logits, row: SamplingRow, found: SampledToken) -> bool:
    """One row against the reference; returns whether only one token would have done."""
    if not np.isfinite(logits.max()):
        assert found.status == SampleStatus.LOGITS_NOT_FINITE
        return True
    final = adjusted(logits, row)
    if final.max() == -INF:
        assert found.status == SampleStatus.NOTHING_LEFT
        return True
    assert found.status == SampleStatus.SAMPLED
    if row.temperature == 0:
        assert found.token_id == int(final.argmax())
        return True
    weights = weights_of(final, row)
    borders = torch.cat((torch.zeros(1, dtype=torch.float64), weights.cumsum(0)))
    borders /= borders[-1].item()
    number = uniforms([row.seed], [row.position])[0]
    assert weights[found.token_id] > 0
    assert borders[found.token_id] - ERROR <= number <= borders[found.token_id + 1] + ERROR
    return bool((borders - number).abs().min() > ERROR)


def check_all(logits: Logits, rows: list[SamplingRow], level: CpuLevel) -> float:
    """Returns the share of rows in which only one token would have done."""
    found = sample(logits, rows, level)
    certain = [check(*each) for each in zip(logits, rows, found, strict=True)]
    return sum(certain) / len(certain)


def random_row(rng: np.random.Generator, vocab_size: int, seed: int) -> SamplingRow:
    """Every parameter is at its default in about half of the rows."""

    def maybe(value: Any, default: Any) -> Any:
        return value if rng.random() < 0.5 else default

    def some_ids(most: int) -> npt.NDArray[np.int32]:
        size = int(rng.integers(0, min(most, vocab_size) + 1)) if rng.random() < 0.3 else 0
        return rng.choice(vocab_size, size, replace=False).astype(np.int32)

    bias_ids, count_ids = some_ids(30), some_ids(60)
    return SamplingRow(
        temperature=maybe(float(10 ** rng.uniform(-1, 0.5)), maybe(1.0, 0.0)),
        top_p=maybe(float(rng.uniform(0, 1)) or 1.0, 1.0),
        top_k=maybe(int(rng.integers(1, 2 * vocab_size)), maybe(3, 0)),
        min_p=maybe(float(rng.uniform(0, 1) ** 3), 0.0),
        presence_penalty=float(rng.uniform(-2, 2)),
        frequency_penalty=float(rng.uniform(-2, 2)),
        repetition_penalty=float(10 ** rng.uniform(-2, 2)),
        seed=seed,
        position=int(rng.integers(0, 2**40)),
        allowed_ids=some_ids(vocab_size),
        forbidden_ids=some_ids(5),
        bias_ids=bias_ids,
        biases=rng.uniform(-100, 100, len(bias_ids)),
        count_ids=count_ids,
        counts=rng.integers(0, 3, len(count_ids)).astype(np.float64),
    )


def random_logits(rng: np.random.Generator, num_rows: int, vocab_size: int) -> Logits:
    logits = rng.standard_normal((num_rows, vocab_size)) * rng.choice([0.5, 3, 10], (num_rows, 1))
    logits[::3] = logits[::3].round()  # many equal logits
    logits[rng.random(logits.shape) < 0.02] = -INF
    logits[:, 0] = 0.0
    logits[::2] -= 30.0
    return np.asarray(logits, np.float32)


@pytest.mark.parametrize("vocab_size", [1, 2, 61, 515])
def test_random_rows_equal_the_reference(level: CpuLevel, vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    logits = random_logits(rng, 1000, vocab_size)
    rows = [random_row(rng, vocab_size, seed) for seed in range(1000)]

    assert check_all(logits, rows, level) > 0.98


@pytest.mark.parametrize("vocab_size", [49_152, 151_669, 262_144])
def test_rows_of_real_size_equal_the_reference(level: CpuLevel, vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    rows = [
        SamplingRow(temperature=0),
        SamplingRow(temperature=1.0),
        SamplingRow(temperature=0.7, top_k=50),
        SamplingRow(temperature=1.5, top_k=20_000),
        SamplingRow(temperature=1.0, top_p=0.9),
        SamplingRow(temperature=1.5, top_p=0.999),
        SamplingRow(temperature=1.0, min_p=0.02),
        SamplingRow(temperature=1.2, top_k=300, top_p=0.95, min_p=0.001),
        *(random_row(rng, vocab_size, 0) for _ in range(6)),
    ]
    rows = [replace(row, seed=7, position=position) for position, row in enumerate(rows)]
    logits = random_logits(rng, len(rows), vocab_size)

    check_all(logits, rows, level)


ODD_LOGITS = [-INF, INF, NAN, 0.0, -0.0, 1e30, -1e30, 3e38, -3e38, 1.0, 1.0 + 2**-10, -5.0, 20.0]
TEMPERATURES = [0.0, 1e-6, 1e-3, 0.3, 1.0, 2.0, 1e3, 1e6]


@given(
    logits=st.lists(st.sampled_from(ODD_LOGITS), min_size=1, max_size=40),
    repeats=st.sampled_from([1, 13, 50]),
    temperature=st.sampled_from(TEMPERATURES),
    top_p=st.sampled_from([1.0, 5e-324, 1e-9, 0.3, 0.9, 1 - 2**-53]),
    top_k=st.sampled_from([0, 1, 2, 7, 2**31 - 1]),
    min_p=st.sampled_from([0.0, 5e-324, 0.01, 0.5, 1.0]),
    bias=st.sampled_from([0.0, 1e-3, -100.0, 1e30, -1e30, 1e308, -1e308]),
    masks=st.sampled_from(["none", "allow first", "forbid first", "both"]),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_odd_rows_equal_the_reference(
    level: CpuLevel,
    logits: list[float],
    repeats: int,
    temperature: float,
    top_p: float,
    top_k: int,
    min_p: float,
    bias: float,
    masks: str,
    seed: int,
) -> None:
    array = np.array([logits * repeats], np.float32)
    row = SamplingRow(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        position=2**64 - 1,
        allowed_ids=ids(0) if masks in ("allow first", "both") else ids(),
        forbidden_ids=ids(0) if masks in ("forbid first", "both") else ids(),
        bias_ids=ids(0),
        biases=values(bias),
        count_ids=ids(array.shape[1] - 1),
        counts=values(3),
        frequency_penalty=0.5,
    )
    plain = replace(row, bias_ids=ids(), biases=values(), count_ids=ids(), counts=values())
    check_all(array, [row], level)
    check_all(array, [plain], level)


def drawn(
    logits: list[float], level: CpuLevel, temperature: float = 1.0, **params: Any
) -> list[int]:
    """Every token that 400 draws bring."""
    array = np.array([logits] * 400, np.float32)
    rows = [SamplingRow(temperature=temperature, seed=i, **params) for i in range(len(array))]
    return sorted({token.token_id for token in sample(array, rows, level)})


def test_equal_logits(level: CpuLevel) -> None:
    (greedy,) = sample(np.array([[1, 3, 3, 3]], np.float32), [SamplingRow(temperature=0)], level)

    assert greedy.token_id == 1
    # top_k keeps all that equal the last one, top_p of them the smallest ids.
    assert drawn([1, 2, 0, 1, 1], level, top_k=2) == [0, 1, 3, 4]
    assert drawn([0] * 10, level, top_p=0.3) == [0, 1, 2]
    assert drawn([0] * 1000, level, top_p=0.004) == [0, 1, 2, 3]
    assert drawn([-9, 0, 0, 1, 0], level, top_p=0.7) == [1, 2, 3]
    assert drawn([-9, -2, -3, -2, -4, -2], level, top_p=0.5) == [1, 3]
    assert drawn([0.0, -0.0, 0.0, -1], level, top_k=1) == [0, 1, 2]
    assert drawn([0, 1, 1, 0], level, min_p=1.0) == [1, 2]


def test_temperatures_without_end(level: CpuLevel) -> None:
    assert drawn([0, -INF, 5, 1e30, 1e30], level, 5e-324) == [3, 4]
    assert drawn([0, -INF, 5, 1e30, -1e30], level, 1e300) == [0, 2, 3, 4]


def test_every_bit_of_the_random_number_counts(level: CpuLevel) -> None:
    """Weights 2^-1, 2^-2, ... 2^-53 and one more 2^-53, those first whose bit is set: their sum is
    the number itself, so that the token after them is drawn, and with any other number another."""
    pairs = [(0, 0), (5, 9), (-1, 5), (2**63 - 1, 2**32), (0x0123456789ABCDEF, 2**64 - 1)]
    pairs += [(1000 + i, i << i) for i in range(50)]
    numbers = uniforms(*map(list, zip(*pairs, strict=True)))
    rows, logits, expected = [], [], []
    for (seed, position), number in zip(pairs, numbers.tolist(), strict=True):
        bits = f"{int(number * 2**53):053b}"
        first = [-float(n) for n, bit in enumerate(bits, 1) if bit == "1"]
        after = [-float(n) for n, bit in enumerate(bits, 1) if bit == "0"]
        # Weights are powers of two: exp(x / log2(e)) = 2^x.
        row = SamplingRow(temperature=math.log2(math.e), seed=seed, position=position)
        for gap in (0, 512 - len(first)):  # also where a block of sums ends with them
            logits.append([*first, *[-INF] * gap, -53.0, *after, *[-INF] * (512 - gap)])
            expected.append(len(first) + gap)
            rows.append(row)

    found = sample(np.array(logits, np.float32), rows, level)

    assert [token.token_id for token in found] == expected


def test_a_row_depends_on_nothing_beside_it(level: CpuLevel) -> None:
    """Alone, in reverse, between NaNs, at any alignment; and all levels say the same."""
    rng = np.random.default_rng(3)
    logits = random_logits(rng, 60, 5003)
    rows = [replace(random_row(rng, 5003, seed), num_logprobs=4) for seed in range(60)]
    before = logits.copy()

    together = sample(logits, rows, level)

    assert sample(logits[::-1].copy(), rows[::-1], level)[::-1] == together
    for index, row in enumerate(rows):
        surrounded = np.full(5003 + 1000, NAN, np.float32)
        alone = surrounded[index : index + 5003].reshape(1, -1)
        alone[:] = logits[index]
        assert sample(alone, [row], level) == [together[index]]
    for other in available_levels():
        assert sample(logits, rows, other) == together
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("vocab_size", [1, 7, 300, 50_000])
def test_logprobs_are_the_models_own(level: CpuLevel, vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    logits = random_logits(rng, 12, vocab_size)
    rows = [
        replace(random_row(rng, vocab_size, index), num_logprobs=num, allowed_ids=ids())
        for index, num in enumerate([0, 1, 5, 20, 10**6, None] * 2)
    ]

    found = sample(logits, rows, level)

    for row_logits, row, token in zip(logits, rows, found, strict=True):
        if row.num_logprobs is None or token.status != SampleStatus.SAMPLED:
            assert token.logprobs is None
            continue
        num_top = min(row.num_logprobs, vocab_size)
        (expected,) = token_logprobs(
            torch.from_numpy(row_logits).unsqueeze(0), [token.token_id], [num_top]
        )
        assert token.logprobs is not None
        assert token.logprobs.logprob == pytest.approx(expected.logprob, abs=ERROR)
        assert token.logprobs.rank == expected.rank
        found_ids = [token_id for token_id, _ in token.logprobs.top]
        order = np.lexsort((np.arange(vocab_size), -row_logits))
        assert found_ids == order[:num_top].tolist()
        found_values = [value for _, value in token.logprobs.top]
        assert found_values == pytest.approx([value for _, value in expected.top], abs=ERROR)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_one_bad_logit_anywhere_is_found(level: CpuLevel, bad: float) -> None:
    logits = np.zeros((600, 600), np.float32)
    np.fill_diagonal(logits, bad)

    found = sample(logits, [SamplingRow(temperature=0)] * len(logits), level)

    assert {token.status for token in found} == {SampleStatus.LOGITS_NOT_FINITE}


def test_a_bad_model_and_bad_parameters_are_told_apart(level: CpuLevel) -> None:
    logits = np.zeros((4, 3000), np.float32)
    logits[0, 2999] = NAN
    logits[1, 0] = INF
    logits[2] = -INF
    row = SamplingRow(temperature=0, allowed_ids=ids(7), forbidden_ids=ids(7))
    by_mask = SamplingRow(temperature=0, allowed_ids=ids(7))

    statuses = [token.status for token in sample(logits, [row] * 4, level)]

    bad = SampleStatus.LOGITS_NOT_FINITE
    assert statuses == [bad, bad, bad, SampleStatus.NOTHING_LEFT]
    # Even where its own mask hides the fault.
    assert sample(logits[:1], [by_mask], level)[0].status == bad


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"allowed_ids": ids(0, 8)}, r"allowed_ids has 8; allowed is \[0, 7\]"),
        ({"forbidden_ids": ids(-1)}, r"forbidden_ids has -1; allowed is \[0, 7\]"),
        ({"count_ids": np.array([1])}, "count_ids are int64; allowed is int32"),
        ({"bias_ids": ids(1, 2), "biases": values(1)}, "one for each of 2 bias_ids"),
        ({"biases": values(1)}, "one for each of 0 bias_ids"),
        ({"count_ids": ids(1), "counts": ids(1)}, "counts are 1 of int32; allowed is float64"),
    ],
)
def test_rows_that_do_not_fit_are_refused(params: dict[str, Any], message: str) -> None:
    row = SamplingRow(temperature=0, **params)

    with pytest.raises(ValueError, match=message):
        sample(np.zeros((1, 8), np.float32), [row], CpuLevel.AVX2)


def test_logits_that_do_not_fit_are_refused() -> None:
    row = SamplingRow(temperature=0)
    message = r"allowed is float32 of shape \[1, vocab_size\]"

    with pytest.raises(ValueError, match=message):
        sample(np.zeros((1, 8)), [row], CpuLevel.AVX2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        sample(np.zeros((2, 8), np.float32), [row], CpuLevel.AVX2)
