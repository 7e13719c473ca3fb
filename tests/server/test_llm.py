"""`LLM`: vLLM's names and shapes over the engine in this process."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from refectory_server import LLM, SamplingParams
from refectory_server.config import (
    CacheConfig,
    ConfigError,
    ModelConfig,
    SchedulerConfig,
    SimulatorConfig,
)
from refectory_server.engine.messages import AddRequest, ToEngine
from refectory_server.errors import InvalidRequest, PromptTooLong, StartupError
from refectory_server.runner.simulated_model_runner import simulated_num_tokens
from refectory_server.testing.simulated_profile import expected_text


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(simulate="instant", max_model_len=512)


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [f"prompt number {i}" for i in range(200)]
    params = [SamplingParams(max_tokens=1 + i % 9, ignore_eos=True) for i in range(200)]
    results = llm.generate(prompts, params, use_tqdm=False)
    assert [result.prompt for result in results] == prompts
    for result, one in zip(results, params, strict=True):
        assert one.max_tokens is not None
        (answer,) = result.outputs
        assert answer.text == expected_text((result.prompt or "").encode(), one.max_tokens)
        assert (answer.index, answer.finish_reason) == (0, "length")
        assert len(answer.token_ids) == one.max_tokens
        assert result.finished


def test_a_lone_prompt_ids_and_dicts(llm: LLM) -> None:
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    ids = list(b"hello")
    texts = [
        llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].text
        for prompt in ("hello", ids, [ids], {"prompt": "hello"}, {"prompt_token_ids": ids})
    ]
    assert texts == [expected_text(b"hello", 5)] * 5
    (result,) = llm.generate({"prompt_token_ids": ids}, params, use_tqdm=False)
    assert (result.prompt, result.prompt_token_ids) == (None, ids)


def test_an_answer_ends_by_itself_and_at_a_stop_string(llm: LLM) -> None:
    count = simulated_num_tokens(b"hello", 48)
    (result,) = llm.generate("hello", use_tqdm=False)
    assert result.outputs[0].finish_reason == "stop"
    assert len(result.outputs[0].token_ids) == count
    text = expected_text(b"hello", count - 1)
    stop = text[6:8]
    params = SamplingParams(stop=stop)
    (stopped,) = llm.generate("hello", params, use_tqdm=False)
    assert stopped.outputs[0].text == text[: text.index(stop)]
    assert stopped.outputs[0].finish_reason == "stop"


def test_choices_of_one_prompt_have_their_own_seeds(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=6, ignore_eos=True)
    (result,) = llm.generate("hello", params, use_tqdm=False)
    assert [answer.index for answer in result.outputs] == [0, 1, 2]
    alone = [
        llm.generate(
            "hello", SamplingParams(seed=5 + i, max_tokens=6, ignore_eos=True), use_tqdm=False
        )[0].outputs[0]
        for i in range(3)
    ]
    assert [answer.text for answer in result.outputs] == [answer.text for answer in alone]
    assert len({answer.text for answer in alone}) == 3


def test_a_queue_limit_that_was_asked_for_fails_whom_it_refuses() -> None:
    llm = LLM(simulate="instant", max_num_seqs=1, max_num_queued_reqs=1)
    params = SamplingParams(n=3, max_tokens=2, ignore_eos=True)
    (result,) = llm.generate("hello", params, use_tqdm=False)
    assert [answer.finish_reason for answer in result.outputs] == ["error"] * 3
    assert "queue" in (result.outputs[0].error_message or "")
    (served,) = llm.generate("hello", SamplingParams(max_tokens=2), use_tqdm=False)
    assert served.outputs[0].finish_reason in ("length", "stop")


def test_times_and_cached_tokens_are_told(llm: LLM) -> None:
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    prompt = "a prompt long enough for two blocks of it to be cached"
    llm.generate(prompt, params, use_tqdm=False)
    (result,) = llm.generate(prompt, params, use_tqdm=False)
    assert result.num_cached_tokens == (len(prompt) - 1) // 16 * 16 > 0
    assert result.metrics.num_output_tokens == 3
    assert result.metrics.ttft_s is not None
    assert 0 <= result.metrics.ttft_s <= result.metrics.e2e_s


def test_preemptions_are_told() -> None:
    # Each answer grows to 5 of the 8 blocks of 16 tokens.
    llm = LLM(simulate="instant", num_gpu_blocks_override=8, enable_prefix_caching=False)
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    prompts = ["first to arrive.", "last to arrive.."]
    results = llm.generate(prompts, params, use_tqdm=False)
    assert [result.num_preemptions for result in results] == [0, 1]
    for result in results:
        assert result.metrics.num_preemptions == result.num_preemptions
        assert result.outputs[0].text == expected_text((result.prompt or "").encode(), 60)
    # The choice that arrived last is the one that steps aside.
    two = SamplingParams(n=2, seed=0, max_tokens=60, ignore_eos=True)
    (result,) = llm.generate(prompts[0], two, use_tqdm=False)
    assert (result.num_preemptions, result.metrics.num_preemptions) == (1, 0)


def test_chat_takes_one_conversation_or_many(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "hello"}]
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    rendered = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    (one,) = llm.chat(conversation, params, use_tqdm=False)
    many = llm.chat([conversation, conversation], params, use_tqdm=False)
    assert one.prompt_token_ids == llm.get_tokenizer().encode(rendered)
    assert [result.outputs[0].text for result in many] == [one.outputs[0].text] * 2


def test_bad_input_is_refused_before_anything_is_computed(llm: LLM) -> None:
    with pytest.raises(PromptTooLong, match="600"):
        llm.generate(["fine", "x" * 600], use_tqdm=False)
    with pytest.raises(InvalidRequest, match="prompt is empty"):
        llm.generate("", use_tqdm=False)
    with pytest.raises(InvalidRequest, match="2 sampling_params for 1 prompts"):
        llm.generate("x", [SamplingParams(), SamplingParams()], use_tqdm=False)
    assert llm.generate([], use_tqdm=False) == []


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (["fine", 7], "a prompt is 7; allowed are a string, a list of token ids and a dict"),
        (b"bytes", "a prompt is b'bytes'; "),
        ([["a", "b"]], r"prompt is \['a', 'b'\]; it must be a list of integers"),
        ([], None),
        ({"prompt_token_ids": "12"}, "prompt_token_ids is '12'; it must be a list of integers"),
        ({"prompt_token_ids": 12}, "prompt_token_ids is 12; it must be a list of integers"),
        ({"prompt": ["a"]}, r"a prompt is \{'prompt': \['a'\]\}; "),
    ],
)
def test_what_is_no_prompt(llm: LLM, prompts: Any, message: str | None) -> None:
    if message is None:
        assert llm.generate(prompts, use_tqdm=False) == []
        return
    with pytest.raises(InvalidRequest, match=f"^{message}"):
        llm.generate(prompts, use_tqdm=False)


@pytest.mark.parametrize("messages", ["hello", ["hello"], [["hello"]], {"role": "user"}])
def test_what_is_no_conversation(llm: LLM, messages: Any) -> None:
    with pytest.raises(
        InvalidRequest, match=r"^a conversation is .*; it must be a list of message"
    ):
        llm.chat(messages, use_tqdm=False)


def test_what_are_no_parameters(llm: LLM) -> None:
    params: Any = {"temperature": 0}
    with pytest.raises(InvalidRequest, match=r"^sampling_params holds 'temperature'; each must be"):
        llm.generate("x", params, use_tqdm=False)


def test_an_interrupted_call_leaves_nothing_behind(llm: LLM) -> None:
    steps = iter([None, None, KeyboardInterrupt()])
    step = llm._core.step

    def interrupted_step() -> object:
        if (error := next(steps)) is not None:
            raise error
        return step()

    params = SamplingParams(max_tokens=50, ignore_eos=True)
    llm._core.step = interrupted_step  # type: ignore[method-assign, assignment]
    try:
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["a", "b"], params, use_tqdm=False)
    finally:
        del llm._core.step
    (result,) = llm.generate("c", params, use_tqdm=False)
    assert result.outputs[0].text == expected_text(b"c", 50)
    llm._core.check_integrity()
    assert llm._core.step().stats.num_running == 0


def test_seeds_not_asked_for_follow_from_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(seed: int) -> list[int]:
        llm = LLM(simulate="instant", seed=seed)
        sent: list[ToEngine] = []
        handle = llm._core.handle

        def listen(message: ToEngine) -> None:
            sent.append(message)
            handle(message)

        monkeypatch.setattr(llm._core, "handle", listen)
        llm.generate(["a", "b"], SamplingParams(max_tokens=1), use_tqdm=False)
        return [message.seed for message in sent if isinstance(message, AddRequest)]

    first = drawn(3)
    assert len(set(first)) == 2
    assert drawn(3) == first
    assert drawn(4) != first


def test_every_engine_option_is_a_keyword() -> None:
    options = {
        f.name
        for group in (ModelConfig, SimulatorConfig, CacheConfig, SchedulerConfig)
        for f in dataclasses.fields(group)
    }
    assert {"enable_prefix_caching", "num_gpu_blocks_override", "max_num_seqs"} <= options
    llm = LLM(
        simulate="instant",
        enable_prefix_caching=False,
        num_gpu_blocks_override=7,
        block_size=8,
        max_num_seqs=3,
    )
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    results = llm.generate(["long enough to fill one block"] * 4, params, use_tqdm=False)
    assert [result.num_cached_tokens for result in results] == [0] * 4
    assert llm._core.step().stats.num_blocks == 7


def test_wrong_options_are_named() -> None:
    with pytest.raises(TypeError, match="no option max_num_seq; did you mean max_num_seqs"):
        LLM(simulate="instant", max_num_seq=3)
    with pytest.raises(ConfigError, match="--max-num-seqs is 0"):
        LLM(simulate="instant", max_num_seqs=0)
    with pytest.raises(StartupError, match="/nowhere"):
        LLM("/nowhere")


def test_the_embedded_model_knows_the_capital_of_france(
    capsys: pytest.CaptureFixture[str],
) -> None:
    llm = LLM(max_model_len=512)
    params = SamplingParams(temperature=0, max_tokens=20, logprobs=2)
    (result,) = llm.chat([{"role": "user", "content": "What is the capital of France?"}], params)
    (answer,) = result.outputs
    assert "Paris" in answer.text
    assert answer.logprobs is not None
    assert len(answer.logprobs) == len(answer.token_ids)
    for token_id, entry in zip(answer.token_ids, answer.logprobs, strict=True):
        assert len(entry) == 2
        assert entry[token_id].rank == 1  # greedy
        assert entry[token_id].logprob == max(one.logprob for one in entry.values()) <= 0
    assert "".join(
        e[t].decoded_token for t, e in zip(answer.token_ids, answer.logprobs, strict=True)
    ) == (answer.text + "<|im_end|>")
    assert "Processed prompts: 100%" in capsys.readouterr().err
    forbidding = dataclasses.replace(params, bad_words=["Paris"])
    question = [{"role": "user", "content": "What is the capital of France?"}]
    (other,) = llm.chat(question, forbidding)[0].outputs
    assert other.text.startswith(answer.text[: answer.text.index("Paris")].rstrip())
    assert "Paris" not in other.text


def test_its_parameters_have_vllms_names() -> None:
    assert list(inspect.signature(LLM.generate).parameters) == [
        "self",
        "prompts",
        "sampling_params",
        "use_tqdm",
    ]
    assert list(inspect.signature(LLM.chat).parameters)[:4] == [
        "self",
        "messages",
        "sampling_params",
        "use_tqdm",
    ]
