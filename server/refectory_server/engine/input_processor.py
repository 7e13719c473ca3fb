"""`InputProcessor`: from what a caller sends to token ids and parameters that the engine can take.

Owns the checks that need the tokenizer or the runner's facts. Does not know HTTP. Every method may
be called from any thread: a worker thread that encodes a long prompt holds no GIL meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from refectory_server.engine.sampling_defaults import SamplingDefaults, load_sampling_defaults
from refectory_server.errors import InvalidRequest, PromptTooLong
from refectory_server.runner.interface import RunnerFacts
from refectory_server.sampling_params import SamplingParams
from refectory_server.tokenizer.chat_template import ChatTemplate
from refectory_server.tokenizer.tokenizer import Tokenizer

__all__ = ["InputProcessor", "SamplingDefaults", "load_sampling_defaults"]


class InputProcessor:
    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        facts: RunnerFacts,
        *,
        default_sampling: SamplingDefaults,
        max_logprobs: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.default_sampling = default_sampling
        self._facts = facts
        self._max_logprobs = max_logprobs

    def encode_prompt(
        self, text: str, *, add_special_tokens: bool = True, field: str = "prompt"
    ) -> list[int]:
        """Ids of a prompt; special tokens written out in it become their ids.

        `field` is the text's name in the request. Raises `InvalidRequest` for text that has no
        UTF-8 form, and `PromptTooLong` without encoding it where it cannot fit the context: some
        megabytes would keep a thread busy for seconds.
        """
        max_chars = self._facts.max_model_len * self.tokenizer.max_chars_per_token
        if len(text) > max_chars:
            raise PromptTooLong(
                f"{field} has {len(text)} characters; at most {max_chars} are allowed: the context "
                f"is {self._facts.max_model_len} tokens, and no token has more than "
                f"{self.tokenizer.max_chars_per_token} characters",
                field=field,
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            raise InvalidRequest(
                f"{field} holds the lone surrogate U+{code:04X} at character {error.start}; "
                "allowed is text that can be encoded as UTF-8",
                field=field,
            ) from error
        return self.tokenizer.encode(text, add_special_tokens)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], /, **template_kwargs: Any
    ) -> list[int]:
        """Ids of a conversation; `template_kwargs` as for `ChatTemplate.render`.

        Nothing is added around the template's text: it writes the special tokens itself. Raises
        `InvalidRequest` where the model has no chat template or it refuses the messages.
        """
        if self.chat_template is None:
            raise InvalidRequest(
                "this model has no chat template; use /v1/completions, or start the server with "
                "--chat-template",
                field="messages",
            )
        text = self.chat_template.render(messages, **template_kwargs)
        return self.encode_prompt(text, add_special_tokens=False, field="messages")

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of ids, special tokens shown. Raises `InvalidRequest` for foreign ids."""
        self._check_ids(token_ids, "tokens")
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)

    def sampling_params(
        self, requested: Mapping[str, Any], *, num_prompt_tokens: int
    ) -> SamplingParams:
        """`requested` (fields of `SamplingParams`; None is left out) over the model's defaults.

        A default `max_tokens` shrinks to what the context leaves; one that was asked for does not.
        """
        merged = self.default_sampling.merged(requested)
        if requested.get("max_tokens") is None and "max_tokens" in merged:
            room = max(1, self._facts.max_model_len - num_prompt_tokens)
            merged["max_tokens"] = min(merged["max_tokens"], room)
        return SamplingParams(**merged)

    def engine_params(self, params: SamplingParams) -> SamplingParams:
        """As the engine takes them: it knows ids only, and stop strings are found on this side.

        A bad word is one at the beginning of a text and after a blank. Raises `InvalidRequest` for
        one that has no UTF-8 form.
        """
        spellings = {
            tuple(self.encode_prompt(text, add_special_tokens=False, field="bad_words")): None
            for word in params.bad_words
            for text in (word, " " + word.lstrip())
        }
        return dataclasses.replace(
            params,
            stop=(),
            bad_words=(),
            bad_words_token_ids=(*params.bad_words_token_ids, *spellings),
        )

    def check(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt_field: str = "prompt",
    ) -> None:
        """Refuse what the engine could never finish. `prompt_field` is the caller's name for it.

        Raises `InvalidRequest` (empty prompt, foreign id, too many tokens asked for) or
        `PromptTooLong`, with the numbers.
        """
        num_prompt_tokens = len(prompt_token_ids)
        if not num_prompt_tokens:
            raise InvalidRequest(
                f"{prompt_field} is empty; at least one token is needed", field=prompt_field
            )
        self._check_ids(prompt_token_ids, prompt_field)
        max_model_len = self._facts.max_model_len
        if num_prompt_tokens + 1 > max_model_len:
            raise PromptTooLong(
                f"{prompt_field} has {num_prompt_tokens} tokens; at most {max_model_len - 1} are "
                f"allowed: the context is {max_model_len} tokens, one is kept for the output",
                field=prompt_field,
            )
        self._check_leaves_tokens(params)
        self._check_ids(params.logit_bias, "logit_bias")
        self._check_ids(params.allowed_token_ids, "allowed_token_ids")
        self._check_ids(params.stop_token_ids, "stop_token_ids")
        for token_ids in params.bad_words_token_ids:
            self._check_ids(token_ids, "bad_words_token_ids")
        if params.logprobs is not None and params.logprobs > self._max_logprobs:
            raise InvalidRequest(
                f"logprobs is {params.logprobs}; allowed is [0, {self._max_logprobs}], the "
                "server's --max-logprobs",
                field="logprobs",
            )
        room = max_model_len - num_prompt_tokens
        for field, least in (("max_tokens", 1), ("min_tokens", 0)):
            value = getattr(params, field)
            if value is not None and value > room:
                raise InvalidRequest(
                    f"{field} is {value}; allowed is [{least}, {room}]: the context is "
                    f"{max_model_len} tokens and {prompt_field} has {num_prompt_tokens}",
                    field=field,
                )

    def _check_leaves_tokens(self, params: SamplingParams) -> None:
        """Refuse masks that name more tokens than there are, or forbid them all."""
        num_allowed = len(params.allowed_token_ids)
        vocab_size = self._facts.vocab_size
        if num_allowed > vocab_size:
            raise InvalidRequest(
                f"allowed_token_ids has {num_allowed} ids; at most {vocab_size} are allowed, the "
                "vocabulary's size",
                field="allowed_token_ids",
            )
        if not params.min_tokens:
            return
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else self._facts.eos_token_ids)}
        if all(token_id in ends for token_id in params.allowed_token_ids or range(vocab_size)):
            raise InvalidRequest(
                f"min_tokens is {params.min_tokens}; only 0 is allowed, as all tokens that may be "
                "chosen would end the text",
                field="min_tokens",
            )

    def _check_ids(self, token_ids: Collection[int], field: str) -> None:
        vocab_size = self._facts.vocab_size
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
            foreign = next(i for i in token_ids if not 0 <= i < vocab_size)
            raise InvalidRequest(
                f"{field} holds the token id {foreign}; allowed is [0, {vocab_size - 1}]",
                field=field,
            )
