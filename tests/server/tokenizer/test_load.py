"""Tokenizer and chat template from the files of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refectory_server.errors import StartupError
from refectory_server.models.source import ModelFiles
from refectory_server.testing.sentencepiece_tokenizer import sentencepiece_backend
from refectory_server.tokenizer.load import load_chat_template, load_tokenizer


def model_folder(path: Path, **json_files: Any) -> ModelFiles:
    """A folder with a tokenizer.json, and `json_files` under their names plus `.json`."""
    sentencepiece_backend().save(str(path / "tokenizer.json"))
    for name, value in json_files.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return ModelFiles(path, "m")


def test_a_tokenizer_file_alone_is_enough(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(model_folder(tmp_path))
    ids = tokenizer.encode("hello hello")
    assert ids == [1, 290, 290]
    assert tokenizer.decode(ids) == "hello hello"
    assert tokenizer.special_token_ids == {0, 1, 2}
    assert tokenizer.eos_token_id is None


def test_named_tokens_come_from_both_config_files(tmp_path: Path) -> None:
    files = model_folder(
        tmp_path,
        special_tokens_map={"bos_token": "<unk>", "eos_token": {"content": "</s>"}},
        tokenizer_config={"bos_token": {"content": "<s>", "lstrip": False}, "pad_token": None},
    )
    tokenizer = load_tokenizer(files)
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)


@pytest.mark.parametrize(
    ("flags", "ids"),
    [
        ({}, [1, 290]),
        ({"add_bos_token": True}, [1, 290]),
        ({"add_bos_token": False}, [290]),
        ({"add_bos_token": True, "add_eos_token": True}, [1, 290, 2]),
        ({"add_eos_token": True}, [290, 2]),
    ],
)
def test_written_flags_decide_what_is_added(
    flags: dict[str, bool], ids: list[int], tmp_path: Path
) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", **flags}
    tokenizer = load_tokenizer(model_folder(tmp_path, tokenizer_config=config))
    assert tokenizer.encode("hello") == ids
    assert tokenizer.encode("hello", add_special_tokens=False) == [290]


def test_a_named_token_is_special_even_if_the_file_forgot(tmp_path: Path) -> None:
    files = model_folder(tmp_path, tokenizer_config={"eos_token": "▁hello"})
    tokenizer = load_tokenizer(files)
    assert tokenizer.special_token_ids == {0, 1, 2, 290}


def test_tokens_that_only_the_config_lists_are_added(tmp_path: Path) -> None:
    listed = {
        "293": {"content": "<|b|>", "special": False, "normalized": False},
        "292": {"content": "<|a|>", "special": True, "normalized": False},
        "1": {"content": "<s>", "special": True},
    }
    files = model_folder(tmp_path, tokenizer_config={"added_tokens_decoder": listed})
    tokenizer = load_tokenizer(files)
    assert tokenizer.encode("<|a|><|b|>", add_special_tokens=False) == [292, 293]
    assert tokenizer.special_token_ids == {0, 1, 2, 292}
    assert tokenizer.vocab_size == 294


def test_files_that_disagree_on_an_id_stop_the_start(tmp_path: Path) -> None:
    listed = {"300": {"content": "<|a|>", "special": True}}
    files = model_folder(tmp_path, tokenizer_config={"added_tokens_decoder": listed})
    with pytest.raises(StartupError, match=r"<\|a\|> is token 292 in one and 300 in the other"):
        load_tokenizer(files)


def test_truncation_and_padding_in_the_file_are_ignored(tmp_path: Path) -> None:
    backend = sentencepiece_backend()
    backend.enable_truncation(3)
    backend.enable_padding(length=8)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(ModelFiles(tmp_path, "m"))
    assert tokenizer.encode("hello" * 3) == [1, 290, 289, 289]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no tokenizer.json, the only tokenizer file supported"),
        ("", "is not a valid tokenizer file"),
        ('{"version": "1.0", "model": {"ty', "is not a valid tokenizer file"),
        ('{"a": 1}', "is not a valid tokenizer file"),
        ("[1, 2]", "is not a valid tokenizer file"),
        ("\udcff\udcfe", "is not a valid tokenizer file"),
    ],
)
def test_a_broken_tokenizer_file_stops_the_start(
    content: str | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        path = tmp_path / "tokenizer.json"
        path.write_bytes(content.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(StartupError, match=message) as caught:
        load_tokenizer(ModelFiles(tmp_path, "m"))
    assert caught.value.reason == "TokenizerInvalid"
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "holds a list, not an object"),
        ('{"added_tokens_decoder": 5}', "has a malformed added_tokens_decoder: AttributeError"),
        (
            '{"added_tokens_decoder": {"a": {"content": "x"}}}',
            "has a malformed added_tokens_decoder: ValueError: invalid literal for int",
        ),
        (
            '{"added_tokens_decoder": {"292": {}}}',
            "has a malformed added_tokens_decoder: KeyError: 'content'",
        ),
        (
            '{"added_tokens_decoder": {"292": {"content": 5}}}',
            "has a malformed added_tokens_decoder: TypeError",
        ),
        ('{"eos_token": 5}', "eos_token is 5; it must be a string or an object with the string"),
        ('{"bos_token": {"content": 5}}', r"bos_token is {'content': 5}; it must be a string or"),
        ('{"add_bos_token": "false"}', "add_bos_token is 'false'; it must be true or false"),
        ('{"add_eos_token": 0}', "add_eos_token is 0; it must be true or false"),
    ],
)
def test_a_broken_config_file_stops_the_start(content: str, message: str, tmp_path: Path) -> None:
    files = model_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(StartupError, match=f"tokenizer_config.json:? {message}") as caught:
        load_tokenizer(files)
    assert caught.value.reason == "TokenizerInvalid"


def test_a_decoder_of_another_family_stops_the_start(tmp_path: Path) -> None:
    tokenizer = json.loads(sentencepiece_backend().to_str())
    tokenizer["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(StartupError, match="unsupported step WordPiece") as caught:
        load_tokenizer(ModelFiles(tmp_path, "m"))
    assert caught.value.reason == "TokenizerInvalid"


def rendered(files: ModelFiles, chat_template: str | None = None) -> str | None:
    template = load_chat_template(files, chat_template, {"bos_token": "<s>"})
    return None if template is None else template.render([{"role": "user", "content": "Hi"}])


def test_a_model_without_a_chat_template_has_none(tmp_path: Path) -> None:
    assert rendered(model_folder(tmp_path)) is None
    assert rendered(model_folder(tmp_path, tokenizer_config={"chat_template": None})) is None


def test_the_chat_template_of_the_config(tmp_path: Path) -> None:
    config = {"chat_template": "{{ bos_token }}config"}
    assert rendered(model_folder(tmp_path, tokenizer_config=config)) == "<s>config"


def test_of_named_chat_templates_the_default_counts(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert rendered(model_folder(tmp_path, tokenizer_config={"chat_template": named})) == "d"


def test_without_a_default_among_them_there_is_none_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "rag", "template": "r"}]
    assert rendered(model_folder(tmp_path, tokenizer_config={"chat_template": named})) is None
    assert "has the chat templates tool_use, rag, none of them named default" in caplog.text


@pytest.mark.parametrize(
    "value",
    [5, False, {"default": "d"}, [5], [{"name": [], "template": "t"}], [{"name": "default"}]],
)
def test_a_chat_template_that_is_no_text_stops_the_start(tmp_path: Path, value: object) -> None:
    files = model_folder(tmp_path, tokenizer_config={"chat_template": value})
    with pytest.raises(StartupError) as caught:
        rendered(files)
    assert str(caught.value).startswith(
        f"{tmp_path}/tokenizer_config.json: chat_template is {value}; it must be a string or"
    )
    assert caught.value.reason == "ChatTemplateInvalid"
    assert rendered(files, "{{ messages[0].content }}") == "Hi"


def test_the_template_file_comes_before_the_config(tmp_path: Path) -> None:
    files = model_folder(tmp_path, tokenizer_config={"chat_template": "config"})
    (tmp_path / "chat_template.jinja").write_text("filé", encoding="utf-8")
    assert rendered(files) == "filé"


def test_the_flag_comes_before_the_models_own(tmp_path: Path, embedded_files: ModelFiles) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("from a file")
    assert rendered(embedded_files, str(path)) == "from a file"
    assert rendered(embedded_files, "{{ messages[0].content }}!") == "Hi!"


@pytest.mark.parametrize("flag", ["~no-such-user/template", "a" * 300])
def test_a_flag_that_can_be_no_path_stops_the_start(embedded_files: ModelFiles, flag: str) -> None:
    with pytest.raises(StartupError, match="neither a file nor Jinja text"):
        load_chat_template(embedded_files, flag, {})


def test_a_flag_that_is_neither_file_nor_text_stops_the_start(embedded_files: ModelFiles) -> None:
    message = "--chat-template is nowhere.jinja: neither a file nor Jinja text"
    with pytest.raises(StartupError, match=message) as caught:
        rendered(embedded_files, "nowhere.jinja")
    assert caught.value.reason == "ChatTemplateInvalid"


def test_a_template_file_that_is_not_text_stops_the_start(tmp_path: Path) -> None:
    files = model_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(StartupError, match="cannot read the chat template") as caught:
        rendered(files)
    assert caught.value.reason == "ChatTemplateInvalid"
