"""`ChatTemplate`: the prompt text of a conversation.

Owns rendering and the plain-text form of messages. Does not know token ids, nor HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from refectory_server.errors import InvalidRequest, StartupError
from refectory_server.tokenizer.template_sandbox import TemplateRaised, TemplateSandbox

_SANDBOX = TemplateSandbox()


class ChatTemplate:
    """One Jinja chat template, compiled. Safe to use from several threads at once."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens`: the texts of `bos_token` and the like, variables of the template.

        Raises `StartupError` with reason `ChatTemplateInvalid` for text that is no template.
        """
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _SANDBOX.compile_bounded(source)
        except TemplateSyntaxError as error:
            raise StartupError(
                f"the chat template is not valid Jinja: line {error.lineno}: {error.message}",
                reason="ChatTemplateInvalid",
            ) from error
        except (TemplateError, RecursionError) as error:
            raise StartupError(
                f"the chat template is not valid Jinja: {error}", reason="ChatTemplateInvalid"
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt of `messages`; `kwargs` are further variables of the template.

        `continue_final_message` ends the prompt right after the last message's text, so that the
        model goes on with it. Raises `InvalidRequest` with field `messages`: the template's own
        words where it calls `raise_exception`, else what went wrong in it.
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other",
                field="continue_final_message",
            )
        plain_messages = [plain_message(i, message) for i, message in enumerate(messages)]
        variables = {
            "tools": tools,
            "documents": None,
            **self._special_tokens,
            **kwargs,
            "messages": plain_messages,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._render(variables)
        return _cut_after_final_message(text, plain_messages) if continue_final_message else text

    def _render(self, variables: dict[str, Any]) -> str:
        try:
            return _SANDBOX.render_bounded(self._template, variables)
        except TemplateRaised as error:
            raise InvalidRequest(str(error), field="messages") from error
        except TemplateError as error:
            raise InvalidRequest(
                f"the chat template cannot render these messages: {error}", field="messages"
            ) from error
        except Exception as error:
            # Foreign code on foreign data: anything may be raised, and only this request is hurt.
            raise InvalidRequest(
                f"the chat template cannot render these messages: {type(error).__name__}: {error}",
                field="messages",
            ) from error


def plain_message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its content as one string: text parts joined by newlines, none as ''.

    Raises `InvalidRequest` for a part that is not text.
    """
    content = message.get("content")
    if content is None:
        content = ""
    elif isinstance(content, Sequence) and not isinstance(content, str):
        content = "\n".join(_text_of_part(index, i, part) for i, part in enumerate(content))
    elif not isinstance(content, str):
        raise InvalidRequest(
            f"messages[{index}].content is a {type(content).__name__}; "
            "allowed is a string or a list of text parts",
            field="messages",
        )
    return {**message, "content": content}


def _text_of_part(message_index: int, part_index: int, part: Any) -> str:
    place = f"messages[{message_index}].content[{part_index}]"
    part_type = part.get("type") if isinstance(part, Mapping) else None
    if part_type != "text":
        raise InvalidRequest(
            f"{place} has type {part_type!r}; this model takes only 'text'", field="messages"
        )
    if not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{place}.text is missing or not a string", field="messages")
    return str(part["text"])


def _cut_after_final_message(text: str, messages: Sequence[Mapping[str, Any]]) -> str:
    content = str(messages[-1]["content"]) if messages else ""
    start = text.rfind(content.strip())
    if not content.strip() or start < 0:
        raise InvalidRequest(
            "continue_final_message needs a last message whose text the chat template writes out",
            field="continue_final_message",
        )
    # Templates may trim messages; then the spaces at the message's end are not in the prompt.
    untrimmed = content.lstrip()
    kept = untrimmed if text.startswith(untrimmed, start) else content.strip()
    return text[: start + len(kept)]
