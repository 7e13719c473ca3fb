"""`ChatTemplate`: what templates may rely on, and what requests are told when they fail."""

from __future__ import annotations

import re
from typing import Any

import pytest

from refectory_server.errors import InvalidRequest, StartupError
from refectory_server.models.source import ModelFiles
from refectory_server.tokenizer.byte_tokenizer import CHAT_TEMPLATE
from refectory_server.tokenizer.chat_template import ChatTemplate
from refectory_server.tokenizer.load import load_chat_template

USER = {"role": "user", "content": "Hi"}


def render(source: str, messages: list[dict[str, Any]] | None = None, **kwargs: Any) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    return template.render([USER] if messages is None else messages, **kwargs)


def test_the_embedded_models_template(embedded_files: ModelFiles) -> None:
    template = load_chat_template(embedded_files, None, {})
    assert template is not None
    assert template.render([USER]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    conversation = [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": "Hello"},
    ]
    assert template.render(conversation, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n"
    )


def test_special_tokens_and_further_variables() -> None:
    assert render("{{ bos_token }}{{ mode }}{{ eos_token }}", mode="x") == "<s>x</s>"
    assert render("{{ tools is none }} {{ documents is none }}") == "True True"
    assert render("{{ tools[0].name }}", tools=[{"name": "t"}]) == "t"


def test_blocks_leave_no_blank_lines() -> None:
    source = (
        "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}"
    )
    assert render(source) == "Hi\n"


def test_loop_controls_and_loop_variables() -> None:
    source = (
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}"
        "{% endif %}{{ i }}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}"
    )
    assert render(source) == "01/9,23/9,34/9,"


def test_assigning_in_a_loop_through_a_namespace() -> None:
    source = (
        "{% set ns = namespace(text='') %}{% for m in messages %}"
        "{% set ns.text = ns.text ~ m.role ~ loop.index0 %}{% endfor %}{{ ns.text }}"
    )
    assert render(source, [USER, USER]) == "user0user1"


def test_generation_blocks_are_their_body() -> None:
    assert render("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "aHib"


def test_tojson_escapes_nothing_for_html() -> None:
    value = {"b": "<é & 'x'>", "a": 1}
    assert render("{{ v | tojson }}", v=value) == '{"b": "<é & \'x\'>", "a": 1}'
    assert render("{{ v | tojson(sort_keys=true, indent=1) }}", v={"b": 1, "a": 2}) == (
        '{\n "a": 2,\n "b": 1\n}'
    )


def test_strftime_now() -> None:
    assert re.fullmatch(r"\d\d [A-Z][a-z]{2} 20\d\d", render("{{ strftime_now('%d %b %Y') }}"))


def test_join_and_other_filters() -> None:
    assert render("{{ ['a', 1, 'b'] | join('-') }}{{ ', '.join(['x', 'y']) }}") == "a-1-bx, y"
    assert render("{{ messages | map(attribute='role') | join(',') }}", [USER, USER]) == "user,user"
    assert render("{{ ' a\nb ' | trim | indent(2) }}{{ 'aXa'.replace('X', '--') }}") == "a\n  ba--a"
    assert render("{{ '{:>4}|{}'.format('a', 1) }}{{ '%3d' % 7 }}") == "   a|1  7"


def test_text_parts_are_joined_by_newlines() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None},
    ]
    source = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    assert render(source, messages) == "[one\ntwo][]"
    assert render(source, [{"role": "user", "content": []}, {"role": "tool"}]) == "[][]"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}],
            "messages[0].content[1] has type 'image_url'; this model takes only 'text'",
        ),
        (["a"], "messages[0].content[0] has type None; this model takes only 'text'"),
        ([{"type": "text"}], "messages[0].content[0].text is missing or not a string"),
        (5, "messages[0].content is a int; allowed is a string or a list of text parts"),
    ],
)
def test_other_content_is_refused(content: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render("", [{"role": "user", "content": content}])
    assert (str(caught.value), caught.value.field) == (message, "messages")


def test_the_templates_own_words_reach_the_caller() -> None:
    source = "{{ raise_exception('Roles must alternate: user/assistant') }}"
    with pytest.raises(InvalidRequest) as caught:
        render(source)
    assert str(caught.value) == "Roles must alternate: user/assistant"
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("{{ missing.name }}", "'missing' is undefined"),
        ("{{ 1 + 'a' }}", "TypeError: unsupported operand type(s)"),
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{% include 'other' %}", "TypeError: no loader for this environment specified"),
    ],
)
def test_a_failing_template_is_the_requests_error(source: str, detail: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(source)
    prefix = "the chat template cannot render these messages: "
    assert str(caught.value).startswith(prefix + detail)
    assert caught.value.field == "messages"


@pytest.mark.parametrize("source", ["{% for m in messages %}", "{{ a b }}", "{% nonsense %}"])
def test_text_that_is_no_template_stops_the_start(source: str) -> None:
    with pytest.raises(StartupError, match="the chat template is not valid Jinja: line 1: ") as e:
        ChatTemplate(source, {})
    assert e.value.reason == "ChatTemplateInvalid"


def test_an_unknown_filter_stops_the_start() -> None:
    with pytest.raises(StartupError, match="No filter named 'nonsense'"):
        ChatTemplate("{{ messages | nonsense }}", {})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("The answer is", "<|im_start|>assistant\nThe answer is"),
        ("The answer is ", "<|im_start|>assistant\nThe answer is "),
        ("user", "<|im_start|>assistant\nuser"),
    ],
)
def test_a_final_message_is_left_open(content: str, expected: str) -> None:
    text = render(
        CHAT_TEMPLATE,
        [USER, {"role": "assistant", "content": content}],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert text == "<|im_start|>user\nHi<|im_end|>\n" + expected


def test_a_final_message_that_the_template_trims_is_left_open() -> None:
    text = render(
        "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}",
        [USER, {"role": "assistant", "content": " The \n"}],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert text == "<Hi><The"


@pytest.mark.parametrize("content", ["", "  ", None])
def test_there_must_be_a_final_text_to_continue(content: str | None) -> None:
    with pytest.raises(InvalidRequest, match="needs a last message") as caught:
        render(
            CHAT_TEMPLATE,
            [USER, {"role": "assistant", "content": content}],
            add_generation_prompt=False,
            continue_final_message=True,
        )
    assert caught.value.field == "continue_final_message"


def test_continuing_excludes_a_new_turn() -> None:
    with pytest.raises(InvalidRequest, match="exclude each other"):
        render(CHAT_TEMPLATE, continue_final_message=True)


def test_a_request_cannot_replace_the_messages() -> None:
    kwargs: dict[str, Any] = {"messages": [{"content": "other"}]}
    assert ChatTemplate("{{ messages[0].content }}", {}).render([USER], **kwargs) == "Hi"


def test_messages_are_not_changed_by_rendering() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    render("{{ messages[0].content }}", [message])
    assert message == {"role": "user", "content": [{"type": "text", "text": "a"}]}
