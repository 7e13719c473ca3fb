"""Tokens under masks, bias and penalties equal a plain float64 reading; faults stay alone."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from refectory_server.core.scheduler_output import ModelRunnerOutput, TokenLogprobs
from refectory_server.runner.input_batch import RunnerRequest
from refectory_server.runner.logit_adjustments import LogitAdjustments
from refectory_server.runner.philox import uniforms
from refectory_server.runner.token_choice import choose_tokens
from refectory_server.sampling_params import SamplingParams
from refectory_server.testing.plain_sampler import plain_adjust, plain_choice

VOCAB_SIZE = 61
EOS = (2, 5)
NAN, INF = float("nan"), float("inf")
SETTINGS = [
    SamplingParams(temperature=0, presence_penalty=1.5),
    SamplingParams(temperature=0, frequency_penalty=0.7),
    SamplingParams(temperature=0, frequency_penalty=-2, presence_penalty=-0.3),
    SamplingParams(temperature=0, repetition_penalty=1.7),
    SamplingParams(temperature=0, repetition_penalty=0.6),
    SamplingParams(temperature=0, logit_bias={3: 4.5, 60: -100, 7: 100}),
    SamplingParams(temperature=0, allowed_token_ids=(9, 4, 33)),
    SamplingParams(temperature=0, min_tokens=5, stop_token_ids=(11, 12, 13)),
    SamplingParams(temperature=0, min_tokens=5, logit_bias={2: 100}),
    SamplingParams(temperature=0, min_tokens=5, logit_bias={2: 100}, ignore_eos=True),
    SamplingParams(temperature=0, bad_words_token_ids=((43,), (17,), (5,), (26, 17), (1000,))),
    SamplingParams(
        allowed_token_ids=(1, 3, 4), bad_words_token_ids=((1, 1), (3, 3), (4, 4), (1, 3, 4))
    ),
    SamplingParams(presence_penalty=2),
    SamplingParams(temperature=0.5, repetition_penalty=1.2, top_p=0.9),
    SamplingParams(
        temperature=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.9,
        repetition_penalty=1.1,
        logit_bias={i: i / 20 for i in range(VOCAB_SIZE)},
        allowed_token_ids=tuple(range(0, VOCAB_SIZE, 2)),
        min_tokens=3,
        top_k=20,
        min_p=0.01,
    ),
    SamplingParams(),
    SamplingParams(temperature=0),
]


def make_request(
    name: str,
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int] = (),
    *,
    seed: int = 0,
    vocab_size: int = VOCAB_SIZE,
) -> RunnerRequest:
    token_ids = [*prompt, *output]
    adjustments = LogitAdjustments.for_request(
        params, token_ids, len(prompt), eos_token_ids=EOS, vocab_size=vocab_size
    )
    return RunnerRequest(name, token_ids, params, seed, np.empty(0, np.int32), 0, adjustments)


def random_logits(num_rows: int, seed: int) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_twenty_tokens_equal_the_plain_reading(params: SamplingParams) -> None:
    prompt = [4, 9, 9, 33, 60]
    request = make_request("r", params, prompt, seed=5)
    output: list[int] = []
    for step in range(20):
        logits = random_logits(1, step)
        adjusted = plain_adjust(logits[0].tolist(), params, prompt, output, EOS)
        expected = plain_choice(adjusted, params, 5, len(prompt) + step)

        assert choose_tokens(logits, [request]).sampled_token_ids == {"r": expected}
        output.append(expected)
    assert request.token_ids == prompt + output


def adjusted_row(row: Sequence[float], request: RunnerRequest) -> list[float]:
    assert request.adjustments is not None
    logits = np.array(row, np.float64)
    request.adjustments.apply(logits)
    return [*logits.tolist()]


def test_values_by_hand() -> None:
    # Token 1 is in the prompt, 3 twice in the output, 4 in both.
    row = [1.0, 2.0, -1.0, 4.0, -2.0]
    prompt, output = [1, 4], [3, 4, 3]

    def adjusted(**params: Any) -> list[float]:
        request = make_request("r", SamplingParams(**params), prompt, output, vocab_size=len(row))
        return adjusted_row(row, request)

    assert adjusted(presence_penalty=0.5) == [1.0, 2.0, -1.0, 3.5, -2.5]
    assert adjusted(frequency_penalty=0.5) == [1.0, 2.0, -1.0, 3.0, -2.5]
    assert adjusted(repetition_penalty=2.0) == [1.0, 1.0, -1.0, 2.0, -4.0]
    assert adjusted(repetition_penalty=2.0, frequency_penalty=1.0, presence_penalty=0.5) == [
        *(1.0, 1.0, -1.0),
        *(2.0 - 2.0 - 0.5, -4.0 - 1.0 - 0.5),
    ]
    assert adjusted(logit_bias={0: 10.0, 4: -1.5}) == [11.0, 2.0, -1.0, 4.0, -3.5]
    # The bias comes before the penalty: (4 - 2) / 2.
    assert adjusted(logit_bias={3: -2.0}, repetition_penalty=2.0)[3] == 1.0
    assert adjusted(allowed_token_ids=(3, 0)) == [1.0, -INF, -INF, 4.0, -INF]
    assert adjusted(allowed_token_ids=(3,), logit_bias={4: 100.0})[4] == -INF
    assert adjusted(min_tokens=4, stop_token_ids=(1, 77)) == [1.0, -INF, -INF, 4.0, -2.0]
    assert adjusted(min_tokens=3, stop_token_ids=(1,)) == row
    assert adjusted(bad_words_token_ids=((0,), (4, 3, 1))) == [-INF, -INF, *row[2:]]
    # Of the prompt's tokens none is the beginning of a word; nor is the output longer than it is.
    assert adjusted(bad_words_token_ids=((4, 4), (1, 4, 3, 4, 3, 2), (3, 77))) == row


def test_what_is_known_after_a_preemption_is_that_of_a_request_that_never_stopped() -> None:
    params = SamplingParams(
        repetition_penalty=1.3,
        frequency_penalty=0.2,
        presence_penalty=0.1,
        bad_words_token_ids=tuple((i, i, j) for i in range(61) for j in range(50)),
    )
    rng = random.Random(7)
    prompt = [rng.randrange(VOCAB_SIZE) for _ in range(30)]
    running = make_request("r", params, prompt)
    row = random_logits(1, 0)[0].tolist()
    for _ in range(300):
        running.append_output_token(rng.randrange(VOCAB_SIZE))
    for _ in range(2):
        running.append_output_token(7)
    restarted = make_request("r", params, prompt, running.token_ids[len(prompt) :])

    assert adjusted_row(row, running) == adjusted_row(row, restarted)
    assert adjusted_row(row, running)[:50] == [-INF] * 50


def test_more_distinct_tokens_than_the_first_buffer_holds() -> None:
    params = SamplingParams(presence_penalty=1.0)
    adjustments = LogitAdjustments.for_request(params, [0], 1, eos_token_ids=(), vocab_size=1000)
    assert adjustments is not None
    for token_id in range(0, 1000, 3):
        adjustments.add_output_token(token_id)
    logits = np.zeros(1000, np.float64)
    adjustments.apply(logits)

    assert logits.tolist() == [-1.0 if token_id % 3 == 0 else 0.0 for token_id in range(1000)]


def test_a_row_is_independent_of_the_others() -> None:
    logits = random_logits(len(SETTINGS), 3)

    def requests() -> list[RunnerRequest]:
        return [
            make_request(f"r{i}", params, [i, i + 1], [i + 2, 40], seed=70 + i)
            for i, params in enumerate(SETTINGS)
        ]

    together = choose_tokens(logits, requests()).sampled_token_ids
    backwards = choose_tokens(logits.flip(0), requests()[::-1]).sampled_token_ids
    alone: dict[str, int] = {}
    for index, request in enumerate(requests()):
        alone |= choose_tokens(logits[index : index + 1], [request]).sampled_token_ids

    assert together == backwards == alone
    assert len(together) == len(SETTINGS)


def test_the_models_logits_are_left_as_they_are() -> None:
    logits = random_logits(len(SETTINGS), 4)
    before = logits.clone()
    choose_tokens(logits, [make_request(f"r{i}", p, [1, 2], [3]) for i, p in enumerate(SETTINGS)])

    assert torch.equal(logits, before)


def test_parameters_that_forbid_every_token_fail_their_request_only() -> None:
    params = SamplingParams(allowed_token_ids=(2,), min_tokens=1)
    plain = SamplingParams(temperature=0)
    logits = random_logits(3, 1)
    output = choose_tokens(
        logits,
        [
            make_request("a", plain, [1]),
            make_request("b", params, [1]),
            make_request("c", plain, [1]),
        ],
    )

    assert output.errors == {
        "b": "no token is left to choose from: "
        "allowed_token_ids, bad_words and min_tokens forbid all"
    }
    assert output.sampled_token_ids == {"a": int(logits[0].argmax()), "c": int(logits[2].argmax())}


def test_bad_logits_fail_a_request_even_where_its_mask_hides_them() -> None:
    logits = random_logits(2, 1)
    logits[1, 7] = NAN
    good = make_request("good", SamplingParams(presence_penalty=1), [1])
    bad = make_request("bad", SamplingParams(allowed_token_ids=(3,)), [1, 2])
    output = choose_tokens(logits, [good, bad])

    assert output.errors == {"bad": "the model's logits after token 2 are NaN or infinite"}
    assert output.sampled_token_ids.keys() == {"good"}
    assert bad.token_ids == [1, 2]


def test_an_exception_of_the_sampler_fails_the_guilty_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logits = random_logits(len(SETTINGS), 3)

    def requests() -> list[RunnerRequest]:
        return [
            make_request(f"r{i}", params, [i], [3], seed=i) for i, params in enumerate(SETTINGS)
        ]

    healthy = choose_tokens(logits, requests()).sampled_token_ids

    def faulty(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
        if 11 in seeds:
            raise ArithmeticError("out of numbers")
        return uniforms(seeds, positions)

    monkeypatch.setattr("refectory_server.runner.sampler.uniforms", faulty)
    with caplog.at_level(logging.ERROR):
        output = choose_tokens(logits, requests())

    assert output.errors == {"r11": "sampling failed: ArithmeticError: out of numbers"}
    assert output.sampled_token_ids == {k: v for k, v in healthy.items() if k != "r11"}
    assert caplog.messages == [
        f"sampling failed for a step of {len(SETTINGS)} requests",
        "request r11: sampling failed",
    ]


def plain_logprobs(row: torch.Tensor) -> npt.NDArray[np.float64]:
    values = np.array(row.tolist(), dtype=np.float64)
    total: np.float64 = np.exp(values - values.max()).sum()
    logprobs: npt.NDArray[np.float64] = values - (values.max() + np.log(total))
    return logprobs


def test_logprobs_are_the_models_own() -> None:
    logits = random_logits(4, 9)
    logits[0, 17] = -INF
    output = choose_tokens(
        logits,
        [
            make_request("none", SamplingParams(temperature=0), [1]),
            make_request("chosen", SamplingParams(temperature=0, logprobs=0), [1]),
            make_request("biased", SamplingParams(logit_bias={8: 100}, logprobs=3), [1]),
            make_request("all", SamplingParams(temperature=0.2, logprobs=100), [1], seed=3),
        ],
    )

    assert output.logprobs.keys() == {"chosen", "biased", "all"}
    assert output.sampled_token_ids["biased"] == 8
    for index, name, num_top in ((1, "chosen", 0), (2, "biased", 3), (3, "all", VOCAB_SIZE)):
        expected = plain_logprobs(logits[index])
        found = output.logprobs[name]
        token_id = output.sampled_token_ids[name]
        order = np.argsort(-expected)
        assert found.logprob == pytest.approx(expected[token_id], abs=1e-12)
        assert found.rank == 1 + int((expected > expected[token_id]).sum())
        assert [i for i, _ in found.top] == order[:num_top].tolist()
        assert [p for _, p in found.top] == pytest.approx(expected[order[:num_top]], abs=1e-12)


def test_logprobs_are_not_computed_when_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> list[TokenLogprobs]:
        raise AssertionError("computed")

    monkeypatch.setattr("refectory_server.runner.token_choice.token_logprobs", fail)
    output = choose_tokens(random_logits(2, 0), [make_request(n, SETTINGS[0], [1]) for n in "ab"])

    assert output.errors == {}
    assert output.logprobs == ModelRunnerOutput().logprobs == {}
