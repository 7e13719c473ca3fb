"""`SamplingParams`: every bad value is refused with its field, itself and the range."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from refectory_server.errors import InvalidRequest
from refectory_server.sampling_params import SamplingParams

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("n", 0, "n is 0; allowed is [1, 128]"),
        ("n", 129, "n is 129; allowed is [1, 128]"),
        ("temperature", 2.1, "temperature is 2.1; allowed is [0, 2]"),
        ("top_p", 0.0, "top_p is 0.0; allowed is (0, 1]"),
        ("top_k", -2, "top_k is -2; allowed is [-1, 2147483647]"),
        ("min_p", 1.5, "min_p is 1.5; allowed is [0, 1]"),
        ("presence_penalty", 2.5, "presence_penalty is 2.5; allowed is [-2, 2]"),
        ("presence_penalty", NAN, "presence_penalty is nan; allowed is [-2, 2]"),
        ("frequency_penalty", -3, "frequency_penalty is -3; allowed is [-2, 2]"),
        ("repetition_penalty", 0.0, "repetition_penalty is 0.0; allowed is [0.01, 100]"),
        ("repetition_penalty", INF, "repetition_penalty is inf; allowed is [0.01, 100]"),
        ("logit_bias", {5: 101.0}, "logit_bias of token 5 is 101.0; allowed is [-100, 100]"),
        ("logit_bias", {5: NAN}, "logit_bias of token 5 is nan; allowed is [-100, 100]"),
        (
            "logit_bias",
            {-1: 1.0},
            "a token id of logit_bias is -1; allowed is [0, 2147483647]",
        ),
        (
            "logit_bias",
            dict.fromkeys(range(1025), 1.0),
            "logit_bias has 1025 tokens; at most 1024 are allowed",
        ),
        ("allowed_token_ids", (-1,), "allowed_token_ids is -1; allowed is [0, 2147483647]"),
        ("seed", 2**63, f"seed is {2**63}; allowed is [{-(2**63)}, {2**63 - 1}]"),
        ("max_tokens", 0, "max_tokens is 0; allowed is [1, 2147483647]"),
        ("min_tokens", -1, "min_tokens is -1; allowed is [0, 2147483647]"),
        ("stop", ("",), "stop holds an empty string; each needs a character"),
        ("stop", ("x",) * 17, "stop has 17 strings; at most 16 are allowed"),
        ("bad_words", ["a", ""], "bad_words holds an empty string; each needs a character"),
        ("bad_words", ["x"] * 129, "bad_words has 129 strings; at most 128 are allowed"),
        (
            "bad_words",
            ["x" * 129],
            "bad_words holds a string of 129 characters; at most 128 are allowed",
        ),
        ("bad_words", 5, "bad_words is 5; it must be a string or a list of strings"),
        (
            "bad_words_token_ids",
            [[5, -1]],
            "bad_words_token_ids is -1; allowed is [0, 2147483647]",
        ),
        ("bad_words_token_ids", [5], "bad_words_token_ids is 5; it must be a list of integers"),
        ("stop_token_ids", (-4,), "stop_token_ids is -4; allowed is [0, 2147483647]"),
        ("logprobs", -1, "logprobs is -1; allowed is [0, 2147483647]"),
        ("n", 1.5, "n is 1.5; it must be an integer"),
        ("max_tokens", "8", "max_tokens is '8'; it must be an integer"),
        ("temperature", "1", "temperature is '1'; it must be a number"),
        ("logit_bias", [5], "logit_bias is [5]; it must be a dict of token ids and numbers"),
        ("logit_bias", {"5": 1}, "a token id of logit_bias is '5'; it must be an integer"),
        ("stop", 5, "stop is 5; it must be a string or a list of strings"),
        ("stop", ["a", 5], "stop is ['a', 5]; it must be a string or a list of strings"),
        ("stop", b"ab", "stop is b'ab'; it must be a string or a list of strings"),
        ("stop_token_ids", 5, "stop_token_ids is 5; it must be a list of integers"),
        ("stop_token_ids", "57", "stop_token_ids is '57'; it must be a list of integers"),
        ("allowed_token_ids", [1.0], "allowed_token_ids is [1.0]; it must be a list of integers"),
        ("allowed_token_ids", "57", "allowed_token_ids is '57'; it must be a list of integers"),
    ],
)
def test_values_out_of_range(field: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        SamplingParams(**{field: value})
    assert str(error.value) == message
    assert error.value.field == field


def test_one_stop_string_is_one() -> None:
    assert SamplingParams(stop="abc") == SamplingParams(stop=["abc"])
    assert SamplingParams(stop="abc").stop == ("abc",)
    with pytest.raises(InvalidRequest, match="stop holds an empty string"):
        SamplingParams(stop="")


@pytest.mark.parametrize("ids", [(3, 1), [3, 1], np.array([3, 1]), {3: "x", 1: "y"}.keys()])
def test_ids_of_any_sequence_are_a_tuple_of_integers(ids: Any) -> None:
    params = SamplingParams(stop_token_ids=ids, allowed_token_ids=ids)
    assert params.stop_token_ids == params.allowed_token_ids == (3, 1)
    assert {type(token_id) for token_id in params.stop_token_ids} == {int}
    assert hash(params) == hash(SamplingParams(stop_token_ids=(3, 1), allowed_token_ids=(3, 1)))


def test_numbers_of_numpy_become_pythons() -> None:
    params = SamplingParams(
        seed=np.int64(7),  # type: ignore[arg-type]
        top_k=np.int32(3),  # type: ignore[arg-type]
        temperature=np.float32(0.5),  # type: ignore[arg-type]
    )

    assert [type(params.seed), type(params.top_k), type(params.temperature)] == [int, int, float]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_min_tokens_beyond_max_tokens() -> None:
    with pytest.raises(InvalidRequest, match=r"min_tokens is 6; allowed is \[0, 5\]"):
        SamplingParams(min_tokens=6, max_tokens=5)
    assert SamplingParams(min_tokens=5, max_tokens=5).min_tokens == 5


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(
            n=3,
            presence_penalty=-2,
            frequency_penalty=2,
            repetition_penalty=0.01,
            logit_bias={7: -100, 0: 0.5},
            allowed_token_ids=(1, 2),
            stop=("a", "b"),
            bad_words=("c",),
            bad_words_token_ids=((1, 2), (3,)),
            stop_token_ids=(3,),
            min_tokens=4,
            include_stop_str_in_output=True,
            logprobs=0,
        ),
    ],
)
def test_they_travel_as_they_are(params: SamplingParams) -> None:
    data = msgspec.msgpack.encode(params)
    decoded = msgspec.msgpack.decode(data, type=SamplingParams)
    assert decoded == params
    assert hash(decoded) == hash(params)
