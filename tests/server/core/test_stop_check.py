"""`find_stop`: which token ends a request, and not before its least number of tokens."""

from __future__ import annotations

from typing import Any

import pytest

from refectory_server.core.request import FinishReason, Request
from refectory_server.core.stop_check import find_stop
from refectory_server.sampling_params import SamplingParams

EOS, STOP_ID, WORD = 2, 7, 50


@pytest.mark.parametrize(
    ("params", "output", "reason"),
    [
        ({}, [WORD, EOS], FinishReason.STOP),
        ({}, [WORD, STOP_ID], FinishReason.STOP),
        ({"ignore_eos": True}, [WORD, EOS], None),
        ({"ignore_eos": True}, [WORD, STOP_ID], FinishReason.STOP),
        ({"min_tokens": 1}, [EOS], None),
        ({"min_tokens": 1}, [WORD, EOS], FinishReason.STOP),
        ({"min_tokens": 2}, [WORD, STOP_ID], None),
        ({"min_tokens": 2}, [WORD, STOP_ID, STOP_ID], FinishReason.STOP),
        ({}, [WORD] * 4, FinishReason.LENGTH),
        ({}, [WORD] * 3 + [EOS], FinishReason.STOP),
        ({"min_tokens": 4}, [WORD] * 3 + [EOS], FinishReason.LENGTH),
    ],
)
def test_the_last_token(
    params: dict[str, Any], output: list[int], reason: FinishReason | None
) -> None:
    sampling = SamplingParams(stop_token_ids=(STOP_ID,), **params)
    request = Request("r", [EOS, STOP_ID], sampling, seed=0, arrival_time=0.0)
    request.max_output_tokens = 4
    for token_id in output:
        request.append_output_token(token_id)
    assert find_stop(request, {EOS}) is reason
