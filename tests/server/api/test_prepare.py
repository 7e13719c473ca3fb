"""Every honoured field of a generation request arrives where it takes effect."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from refectory_server.api.fields import CHAT_HONOURED, COMPLETION_HONOURED
from refectory_server.api.generation import Prompts, prepare
from refectory_server.api.parsing import parse_generation
from refectory_server.api.protocol import ChatCompletionRequest, CompletionRequest
from refectory_server.config import SchedulerConfig
from refectory_server.errors import InvalidRequest
from refectory_server.sampling_params import SamplingParams
from refectory_server.testing.simulated_engine import FACTS, simulated_engine

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"prompt": "hi"}

PARAMETERS: list[tuple[str, Any, str, Any]] = [
    # field, value on the wire, field of `SamplingParams`, value there
    ("n", 3, "n", 3),
    ("max_tokens", 7, "max_tokens", 7),
    ("min_tokens", 4, "min_tokens", 4),
    ("temperature", 0.25, "temperature", 0.25),
    ("top_p", 0.5, "top_p", 0.5),
    ("top_k", 9, "top_k", 9),
    ("min_p", 0.1, "min_p", 0.1),
    ("presence_penalty", -1.5, "presence_penalty", -1.5),
    ("frequency_penalty", 2, "frequency_penalty", 2),
    ("repetition_penalty", 1.2, "repetition_penalty", 1.2),
    ("logit_bias", {"104": 5, "0": -100.0}, "logit_bias", {104: 5, 0: -100.0}),
    ("allowed_token_ids", [97, 98], "allowed_token_ids", (97, 98)),
    ("bad_words", ["x", " y"], "bad_words", ("x", " y")),
    ("seed", -3, "seed", -3),
    ("stop", "x", "stop", ("x",)),
    ("stop", ["x", "y"], "stop", ("x", "y")),
    ("stop_token_ids", [3, 4], "stop_token_ids", (3, 4)),
    ("include_stop_str_in_output", True, "include_stop_str_in_output", True),
    ("ignore_eos", True, "ignore_eos", True),
    ("skip_special_tokens", False, "skip_special_tokens", False),
]
CHAT_PARAMETERS = [*PARAMETERS, ("max_completion_tokens", 5, "max_tokens", 5)]
ELSEWHERE = {
    "chat": {
        *("model", "stream", "stream_options", "priority", "cache_salt", "best_of"),
        *("messages", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"),
        *("logprobs", "top_logprobs"),
    },
    "completion": {
        *("model", "stream", "stream_options", "priority", "cache_salt", "best_of"),
        *("prompt", "logprobs", "echo"),
    },
}
"""Fields with tests of their own: here or in test_generation, test_logprobs, test_choices."""


def ask(body: dict[str, Any], scheduler: SchedulerConfig | None = None) -> Prompts:
    """What a body makes of itself before the engine sees it."""

    async def scenario() -> Prompts:
        async with simulated_engine() as simulated:
            request_class = ChatCompletionRequest if "messages" in body else CompletionRequest
            return prepare(
                parse_generation(request_class, body, max_model_len=FACTS.max_model_len),
                simulated.engine.input_processor,
                scheduler or SchedulerConfig(),
                max_model_len=FACTS.max_model_len,
            )

    return asyncio.run(scenario())


def test_no_honoured_field_is_forgotten_here() -> None:
    chat, completion = ELSEWHERE["chat"], ELSEWHERE["completion"]
    assert {field for field, *_ in CHAT_PARAMETERS} | chat == CHAT_HONOURED
    assert {field for field, *_ in PARAMETERS} | completion == COMPLETION_HONOURED


@pytest.mark.parametrize(
    ("base", "field", "value", "name", "expected"),
    [(CHAT, *case) for case in CHAT_PARAMETERS] + [(COMPLETION, *case) for case in PARAMETERS],
)
def test_parameters(base: dict[str, Any], field: str, value: Any, name: str, expected: Any) -> None:
    [(token_ids, params)] = ask({**base, field: value})
    assert getattr(params, name) == expected
    [(plain_ids, plain)] = ask(base)
    assert getattr(plain, name) != expected
    assert token_ids == plain_ids
    others = {f for f in SamplingParams.__slots__ if f != name}
    assert all(getattr(params, f) == getattr(plain, f) for f in others)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (CHAT, None),
        ({**CHAT, "logprobs": False, "top_logprobs": 0}, None),
        ({**CHAT, "logprobs": True}, 0),
        ({**CHAT, "logprobs": True, "top_logprobs": 20}, 20),
        (COMPLETION, None),
        ({**COMPLETION, "logprobs": 0}, 0),
        ({**COMPLETION, "logprobs": 5}, 5),
    ],
)
def test_logprobs(body: dict[str, Any], expected: int | None) -> None:
    [(_, params)] = ask(body)
    assert params.logprobs == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [b"ab"]),
        (["ab"], [b"ab"]),
        (["ab", "c"], [b"ab", b"c"]),
        ([97, 98], [b"ab"]),
        ([[97, 98]], [b"ab"]),
        ([[97, 98], [99]], [b"ab", b"c"]),
    ],
)
def test_prompts(prompt: Any, expected: list[bytes]) -> None:
    prompts = ask({"prompt": prompt, "n": 2})
    assert [bytes(token_ids) for token_ids, _ in prompts] == expected
    assert {params.n for _, params in prompts} == {2}


def test_each_prompt_has_its_own_room() -> None:
    prompts = ask({"prompt": ["x" * 505, "x"]})
    assert [params.max_tokens for _, params in prompts] == [7, 16]


def test_a_priority_needs_the_policy() -> None:
    assert len(ask({**CHAT, "priority": 5}, SchedulerConfig(scheduling_policy="priority"))) == 1
    assert len(ask({**CHAT, "priority": 0})) == 1
    with pytest.raises(InvalidRequest, match="priority is -5; only 0 is allowed") as caught:
        ask({**CHAT, "priority": -5})
    assert caught.value.field == "priority"


@pytest.mark.parametrize(
    ("scheduler", "limit"),
    [
        (SchedulerConfig(), 128),
        (SchedulerConfig(max_num_seqs=8), 8),
        (SchedulerConfig(max_num_seqs=256), 128),
        (SchedulerConfig(max_num_seqs=8, max_num_queued_reqs=1), 8),
    ],
)
def test_more_choices_than_could_ever_be_taken_in(scheduler: SchedulerConfig, limit: int) -> None:
    assert ask({**CHAT, "n": limit}, scheduler)[0][1].n == limit
    with pytest.raises(InvalidRequest, match=rf"^n is {limit + 1}; allowed is \[1, {limit}\]$"):
        ask({**CHAT, "n": limit + 1}, scheduler)
