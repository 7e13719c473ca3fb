"""The embedded SmolLM2 tokenizer, alone and against transformers' reading of the same file."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from refectory_server.models.source import ModelFiles
from refectory_server.tokenizer.load import load_chat_template
from refectory_server.tokenizer.tokenizer import HFTokenizer

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  leading and trailing  ",
    "tabs\tand\n\n\nnewlines\r\n mixed \t\n",
    "don't I'll you've SHE'D we're",
    "1234567890 3.14159 1,000,000 0x1F 2024-01-31",
    "a  1\n 22   333",
    "½ ² ٣٤ Ⅷ",
    "def f(x: int) -> int:\n    return x ** 2  # square\n",
    '{"key": [1, 2, {"a": null}]}',
    "naïve café ﬁancé Ångström e\u0301",
    "日本語のテキスト 中文 한국어",
    "مرحبا שלום हिन्दी ไทย",
    "😀👩‍👩‍👧‍👦🇺🇦 e\ufe0f",
    "\x00\x01\x7f\u200b\ufeff\u2028",
    "<|im_start|>user\nhi<|im_end|>\n",
    "a<repo_name>b <|endoftext|> c<|im_end",
    "<|im_start|><|im_start|> <|im_end|>x",
    "https://example.com/a_b-c?d=e&f=%20#g",
    "x" * 500,
    " " * 300 + "y",
]


@pytest.fixture(scope="module")
def reference(embedded_files: ModelFiles) -> Any:
    """transformers' tokenizer from the same file, with the digit rule that it does not take over.

    A GGUF file names its pre-tokenizer; transformers knows no `smollm` and splits like GPT-2.
    """
    transformers = pytest.importorskip("transformers")
    path = embedded_files.path
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer]
    )
    return tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_the_reference(
    text: str, embedded_tokenizer: HFTokenizer, reference: Any
) -> None:
    assert embedded_tokenizer.encode(text) == reference.encode(text)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_text_equals_the_reference(
    text: str, skip_special_tokens: bool, embedded_tokenizer: HFTokenizer, reference: Any
) -> None:
    ids = reference.encode(text)
    assert embedded_tokenizer.decode(ids, skip_special_tokens) == reference.decode(
        ids, skip_special_tokens=skip_special_tokens
    )


@settings(derandomize=True, deadline=None, max_examples=200)
@given(text=st.text(max_size=40))
def test_any_text_encodes_as_the_reference(
    text: str, embedded_tokenizer: HFTokenizer, reference: Any
) -> None:
    assert embedded_tokenizer.encode(text) == reference.encode(text)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(ids=st.lists(st.integers(0, 49151), max_size=20))
def test_any_ids_decode_as_the_reference(
    ids: list[int], embedded_tokenizer: HFTokenizer, reference: Any
) -> None:
    expected = reference.decode(ids, skip_special_tokens=True)
    assert embedded_tokenizer.decode(ids) == expected


def test_digits_are_single_tokens(embedded_tokenizer: HFTokenizer) -> None:
    pieces = [embedded_tokenizer.token_bytes(i) for i in embedded_tokenizer.encode("a  1234")]
    assert pieces == [b"a", b"  ", b"1", b"2", b"3", b"4"]


def test_special_tokens_in_a_text_become_their_ids(embedded_tokenizer: HFTokenizer) -> None:
    assert embedded_tokenizer.encode("<|im_start|>user\nhi<|im_end|>") == [1, 4093, 198, 6004, 2]
    assert embedded_tokenizer.decode([1, 4093, 198, 6004, 2]) == "user\nhi"
    assert (
        embedded_tokenizer.decode([1, 4093, 198, 6004, 2], skip_special_tokens=False)
        == "<|im_start|>user\nhi<|im_end|>"
    )


def test_facts_of_the_vocabulary(embedded_tokenizer: HFTokenizer) -> None:
    assert embedded_tokenizer.vocab_size == 49152
    assert embedded_tokenizer.bos_token_id == 1
    assert embedded_tokenizer.eos_token_id == 2
    assert embedded_tokenizer.special_token_ids == frozenset(range(17))
    assert embedded_tokenizer.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }
    assert embedded_tokenizer.num_leading_spaces == 0
    assert embedded_tokenizer.max_chars_per_token == 81


def test_token_bytes(embedded_tokenizer: HFTokenizer) -> None:
    (euro_first, *euro_rest) = embedded_tokenizer.encode("€")
    assert (
        b"".join(map(embedded_tokenizer.token_bytes, [euro_first, *euro_rest])) == b"\xe2\x82\xac"
    )
    assert embedded_tokenizer.token_bytes(2) == b"<|im_end|>"
    assert embedded_tokenizer.token_bytes(49152) == b""
    assert embedded_tokenizer.token_bytes(-1) == b""


def test_bytes_that_the_vocabulary_lacks(embedded_tokenizer: HFTokenizer) -> None:
    """Bytes that its training text never had: control characters, and what UTF-8 hardly uses."""
    singles = {embedded_tokenizer.token_bytes(i) for i in range(embedded_tokenizer.vocab_size)}
    lacking = {byte for byte in range(256) if bytes([byte]) not in singles}
    assert lacking == {4, 6, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)}


CHAT_TEMPLATES = [
    None,
    """{{ bos_token }}{% for m in messages %}
  {% if m.role == 'user' %}
[INST] {{ m.content | trim }} [/INST]
  {% else %}
{{ m['content'] + eos_token }}
  {% endif %}
{% endfor %}""",
    """{%- set ns = namespace(found=false) %}
{%- for m in messages[::-1] %}
    {%- if not ns.found and m.role == 'user' %}
        {%- set ns.found = true %}{{ '<' ~ loop.index0 ~ '>' }}
    {%- endif %}
{{ m | tojson }}{{- '\n' if not loop.last }}
{%- endfor %}
{%- if add_generation_prompt %}>>{% endif %}""",
    """{% macro turn(m) %}{{ m.role | upper }}: {{ caller() }}{% endmacro %}
{% for m in messages if m.content %}
{% call turn(m) %}{{ m.content.split(' ') | join('_') }}{% endcall %};
{% endfor %}""",
]

CONVERSATION = [
    {"role": "user", "content": " What is <b>1 + 1</b>? "},
    {"role": "assistant", "content": "It is 2. "},
    {"role": "user", "content": "Grüße & 'quotes'"},
]


@pytest.mark.parametrize("source", CHAT_TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_chats_render_as_the_reference(
    source: str | None,
    add_generation_prompt: bool,
    embedded_files: ModelFiles,
    embedded_tokenizer: HFTokenizer,
    reference: Any,
) -> None:
    template = load_chat_template(embedded_files, source, embedded_tokenizer.special_tokens)
    assert template is not None
    rendered = template.render(CONVERSATION, add_generation_prompt=add_generation_prompt)
    assert rendered == reference.apply_chat_template(
        CONVERSATION,
        chat_template=source,
        add_generation_prompt=add_generation_prompt,
        tokenize=False,
    )


@pytest.mark.parametrize("source", CHAT_TEMPLATES[:2])
@pytest.mark.parametrize("content", ["It is", "It is ", " It is\n", "user"])
def test_open_chats_render_as_the_reference(
    source: str | None,
    content: str,
    embedded_files: ModelFiles,
    embedded_tokenizer: HFTokenizer,
    reference: Any,
) -> None:
    template = load_chat_template(embedded_files, source, embedded_tokenizer.special_tokens)
    assert template is not None
    messages = [CONVERSATION[0], {"role": "assistant", "content": content}]
    rendered = template.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered == reference.apply_chat_template(
        messages, chat_template=source, continue_final_message=True, tokenize=False
    )
