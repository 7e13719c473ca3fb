"""`InputProcessor`: encoding, defaults, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import pytest

from refectory_server.config import ModelConfig, ServerConfig, SimulatorConfig
from refectory_server.engine.input_processor import InputProcessor, SamplingDefaults
from refectory_server.errors import InvalidRequest, PromptTooLong
from refectory_server.runner.interface import RunnerFacts
from refectory_server.sampling_params import SamplingParams
from refectory_server.testing.sentencepiece_tokenizer import sentencepiece_tokenizer
from refectory_server.text_side import TextSide
from refectory_server.tokenizer.byte_tokenizer import CHAT_TEMPLATE, ByteTokenizer
from refectory_server.tokenizer.chat_template import ChatTemplate
from refectory_server.tokenizer.tokenizer import Tokenizer

FACTS = RunnerFacts(
    num_blocks=100,
    block_size=16,
    max_model_len=64,
    vocab_size=259,
    eos_token_ids=(256,),
    dtype="float32",
    kv_bytes_per_token=1,
    description="test",
)


def input_processor(
    *,
    tokenizer: Tokenizer | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
    defaults: SamplingDefaults | None = None,
) -> InputProcessor:
    tokenizer = tokenizer or ByteTokenizer()
    return InputProcessor(
        tokenizer,
        None if chat_template is None else ChatTemplate(chat_template, tokenizer.special_tokens),
        FACTS,
        default_sampling=defaults or SamplingDefaults(),
        max_logprobs=20,
    )


def refusal(prompt_token_ids: list[int], **params: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        input_processor().check(prompt_token_ids, SamplingParams(**params))
    return caught.value


def test_a_prompt_gets_the_tokenizers_own_tokens_unless_told_otherwise() -> None:
    processor = input_processor(tokenizer=sentencepiece_tokenizer())
    assert processor.encode_prompt("hello") == [1, 290]
    assert processor.encode_prompt("hello", add_special_tokens=False) == [290]
    assert processor.encode_prompt("<s> hello") == [1, 1, 259, 290]


def test_a_chat_does_not_get_them_twice() -> None:
    processor = input_processor(
        tokenizer=sentencepiece_tokenizer(),
        chat_template="{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
    )
    ids = processor.encode_chat([{"role": "user", "content": "hello"}])
    assert ids == [1, 290]


def test_the_engine_gets_ids_for_bad_words_and_no_stop_strings() -> None:
    params = SamplingParams(stop="x", bad_words=["hello", " hello"], bad_words_token_ids=[[7, 8]])
    processor = input_processor(tokenizer=sentencepiece_tokenizer())
    assert processor.engine_params(params) == SamplingParams(
        bad_words_token_ids=[[7, 8], [290], [259, 290]]
    )
    bytes_only = input_processor().engine_params(SamplingParams(bad_words=["ab"]))
    assert bytes_only.bad_words_token_ids == (tuple(b"ab"), tuple(b" ab"))
    with pytest.raises(
        InvalidRequest, match="bad_words holds the lone surrogate U\\+D800"
    ) as caught:
        processor.engine_params(SamplingParams(bad_words=["\ud800"]))
    assert caught.value.field == "bad_words"
    error = refusal([1], bad_words_token_ids=[[3, 259]])
    assert str(error) == "bad_words_token_ids holds the token id 259; allowed is [0, 258]"


def test_chat_keywords_reach_the_template() -> None:
    messages = [{"role": "user", "content": "hi"}]
    processor = input_processor(chat_template=CHAT_TEMPLATE + "{{ note }}")
    text = ByteTokenizer().decode(
        processor.encode_chat(messages, add_generation_prompt=False, note="N"), False
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\nN"


def test_a_model_without_a_chat_template_says_so() -> None:
    with pytest.raises(InvalidRequest, match="no chat template; use /v1/completions") as caught:
        input_processor(chat_template=None).encode_chat([{"role": "user", "content": "hi"}])
    assert caught.value.field == "messages"


def test_text_without_a_utf8_form_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        input_processor().encode_prompt("ab\ud83dc")
    assert caught.value.field == "prompt"
    assert str(caught.value) == (
        "prompt holds the lone surrogate U+D83D at character 2; "
        "allowed is text that can be encoded as UTF-8"
    )
    with pytest.raises(InvalidRequest, match="messages holds the lone surrogate") as caught:
        input_processor().encode_chat([{"role": "user", "content": "\ud83d"}])
    assert caught.value.field == "messages"


def test_text_far_beyond_the_context_is_refused_before_it_is_encoded() -> None:
    class Refusing(ByteTokenizer):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            raise AssertionError("encoded")

    with pytest.raises(PromptTooLong) as caught:
        input_processor(tokenizer=Refusing()).encode_prompt("a" * 833)
    assert str(caught.value) == (
        "prompt has 833 characters; at most 832 are allowed: the context is 64 tokens, "
        "and no token has more than 13 characters"
    )
    assert len(input_processor().encode_prompt("<|endoftext|>" * 64)) == 64


def test_detokenize_shows_special_tokens() -> None:
    assert input_processor().detokenize([257, 104, 105, 258]) == "<|im_start|>hi<|im_end|>"
    assert input_processor().detokenize([]) == ""


def test_detokenize_refuses_foreign_ids() -> None:
    with pytest.raises(
        InvalidRequest, match=r"tokens holds the token id 259; allowed is \[0, 258\]"
    ):
        input_processor().detokenize([1, 259])


def test_prompts_up_to_the_limits_pass() -> None:
    processor = input_processor()
    processor.check([0] * 63, SamplingParams())
    processor.check([258] * 40, SamplingParams(max_tokens=24))


def test_an_empty_prompt_is_refused() -> None:
    error = refusal([])
    assert str(error) == "prompt is empty; at least one token is needed"
    assert error.field == "prompt"


@pytest.mark.parametrize("foreign", [-1, 259, 2**40])
def test_foreign_ids_are_refused(foreign: int) -> None:
    error = refusal([0, 258, foreign, 1])
    assert str(error) == f"prompt holds the token id {foreign}; allowed is [0, 258]"
    assert error.field == "prompt"


def test_a_prompt_beyond_the_context_is_refused_with_the_numbers() -> None:
    error = refusal([0] * 64)
    assert isinstance(error, PromptTooLong)
    assert str(error) == (
        "prompt has 64 tokens; at most 63 are allowed: the context is 64 tokens, "
        "one is kept for the output"
    )
    assert error.field == "prompt"


def test_more_output_than_the_context_leaves_is_refused() -> None:
    error = refusal([0] * 40, max_tokens=25)
    assert not isinstance(error, PromptTooLong)
    assert str(error) == (
        "max_tokens is 25; allowed is [1, 24]: the context is 64 tokens and prompt has 40"
    )
    assert error.field == "max_tokens"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"min_tokens": 25},
            "min_tokens is 25; allowed is [0, 24]: the context is 64 tokens and prompt has 40",
        ),
        (
            {"logit_bias": {3: 1.0, 259: 1.0}},
            "logit_bias holds the token id 259; allowed is [0, 258]",
        ),
        (
            {"allowed_token_ids": (0, 259)},
            "allowed_token_ids holds the token id 259; allowed is [0, 258]",
        ),
        (
            {"stop_token_ids": (999,)},
            "stop_token_ids holds the token id 999; allowed is [0, 258]",
        ),
        ({"logprobs": 21}, "logprobs is 21; allowed is [0, 20], the server's --max-logprobs"),
    ],
)
def test_parameters_beyond_the_model_are_refused(params: dict[str, Any], message: str) -> None:
    error = refusal([0] * 40, **params)
    assert str(error) == message
    assert error.field == next(iter(params))


def test_the_servers_flag_bounds_logprobs() -> None:
    config = ServerConfig(
        model=ModelConfig(max_logprobs=3), simulator=SimulatorConfig(simulate="instant")
    )
    processor = TextSide.load(config).make_input_processor(FACTS)
    processor.check([1], SamplingParams(logprobs=3))
    with pytest.raises(InvalidRequest, match=r"logprobs is 4; allowed is \[0, 3\]"):
        processor.check([1], SamplingParams(logprobs=4))


def test_errors_use_the_callers_names() -> None:
    with pytest.raises(PromptTooLong, match=r"^messages has 64 tokens"):
        input_processor().check([0] * 64, SamplingParams(), prompt_field="messages")


def test_what_a_request_leaves_out_takes_the_default() -> None:
    defaults = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1)
    processor = input_processor(defaults=defaults)
    params = processor.sampling_params(
        {"temperature": 0.0, "top_p": None, "seed": 7, "stop": ("x",)}, num_prompt_tokens=1
    )
    assert params == SamplingParams(
        temperature=0.0, top_p=0.9, top_k=20, min_p=0.1, seed=7, stop=("x",)
    )


def test_without_defaults_the_parameters_own_ones_count() -> None:
    assert input_processor().sampling_params({}, num_prompt_tokens=1) == SamplingParams()


def test_a_default_length_shrinks_to_the_context_and_a_wish_does_not() -> None:
    processor = input_processor(defaults=SamplingDefaults(max_tokens=50))
    assert processor.sampling_params({}, num_prompt_tokens=4).max_tokens == 50
    assert processor.sampling_params({}, num_prompt_tokens=40).max_tokens == 24
    assert processor.sampling_params({}, num_prompt_tokens=64).max_tokens == 1
    asked = processor.sampling_params({"max_tokens": 50}, num_prompt_tokens=40)
    assert asked.max_tokens == 50
