"""`ByteTokenizer`: ids are bytes, then the special tokens."""

from __future__ import annotations

from refectory_server.tokenizer.byte_tokenizer import CHAT_TEMPLATE, ByteTokenizer
from refectory_server.tokenizer.chat_template import ChatTemplate

TOKENIZER = ByteTokenizer()


def test_ids_are_bytes() -> None:
    assert TOKENIZER.encode("aé") == [97, 0xC3, 0xA9]
    assert TOKENIZER.decode([97, 0xC3, 0xA9]) == "aé"
    assert TOKENIZER.decode([97, 0xC3]) == "a\ufffd"
    assert TOKENIZER.encode("") == []


def test_special_tokens_follow_the_bytes() -> None:
    assert TOKENIZER.encode("<|im_start|>a<|im_end|><|endoftext|>") == [257, 97, 258, 256]
    assert TOKENIZER.decode([257, 97, 258, 256]) == "a"
    assert TOKENIZER.decode([257, 97], skip_special_tokens=False) == "<|im_start|>a"
    assert TOKENIZER.eos_token_id == 256
    assert TOKENIZER.bos_token_id is None
    assert TOKENIZER.special_token_ids == {256, 257, 258}
    assert TOKENIZER.vocab_size == 259


def test_an_id_beyond_the_vocabulary_has_no_bytes() -> None:
    assert TOKENIZER.token_bytes(259) == b""
    assert TOKENIZER.token_bytes(-1) == b""


def test_its_chat_format() -> None:
    template = ChatTemplate(CHAT_TEMPLATE, TOKENIZER.special_tokens)
    text = template.render([{"role": "user", "content": "hi"}])
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert TOKENIZER.encode(text)[0] == 257
