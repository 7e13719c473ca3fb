"""The answers of the two generation routes in OpenAI's shapes, whole and as stream frames.

Owns the order of a stream's events. Knows no HTTP and no engine beyond its deltas.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from refectory_server.api.generation import WholeText, finish_word, usage
from refectory_server.api.responses import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    Completion,
    CompletionChoice,
    FinishWord,
    Usage,
)
from refectory_server.api.sse import DONE_EVENT, event
from refectory_server.engine.async_engine import TextDelta


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every chunk of one answer repeats."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str
    includes_usage: bool
    """A stream ends with a usage chunk, and the others carry `usage: null`."""

    def chunk_fields(self) -> dict[str, Any]:
        fields = {"id": self.id, "created": self.created, "model": self.model}
        return fields | {"usage": None} if self.includes_usage else fields


class Answer(Protocol):
    """One route's shapes. The methods from `opening` on return framed events."""

    @property
    def head(self) -> AnswerHead: ...

    def whole(self, whole: WholeText) -> str:
        """The JSON of an answer that is not streamed."""
        ...

    def opening(self) -> bytes: ...

    def text(self, text: str) -> bytes: ...

    def end(self, finish: FinishWord) -> bytes: ...

    def usage(self, usage: Usage) -> bytes: ...


async def frames(
    answer: Answer, deltas: AsyncGenerator[TextDelta, None]
) -> AsyncGenerator[bytes, None]:
    """Opening, text, one finish chunk, perhaps one usage chunk, `[DONE]`.

    Events that are known together make one frame. The first frame comes with the first delta, so
    an error before it is raised before anything was sent. Closes `deltas` in every case.
    """
    frame = answer.opening()
    async with aclosing(deltas):
        async for delta in deltas:
            if delta.text:
                frame += answer.text(delta.text)
            if delta.finish_reason is not None:
                frame += answer.end(finish_word(delta))
                if answer.head.includes_usage:
                    frame += answer.usage(usage(delta))
                yield frame + DONE_EVENT
                return
            if frame:
                yield frame
            frame = b""


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    head: AnswerHead

    def whole(self, whole: WholeText) -> str:
        message = AssistantMessage(content=whole.text)
        return ChatCompletion(
            id=self.head.id,
            created=self.head.created,
            model=self.head.model,
            choices=[ChatChoice(message=message, finish_reason=whole.finish_word)],
            usage=whole.usage,
        ).model_dump_json()

    def opening(self) -> bytes:
        return self._choice(ChatDelta(role="assistant", content=""), None)

    def text(self, text: str) -> bytes:
        return self._choice(ChatDelta(content=text), None)

    def end(self, finish: FinishWord) -> bytes:
        return self._choice(ChatDelta(), finish)

    def usage(self, usage: Usage) -> bytes:
        return self._event(choices=[], usage=usage)

    def _choice(self, delta: ChatDelta, finish: FinishWord | None) -> bytes:
        choice = ChatChunkChoice(index=0, delta=delta, logprobs=None, finish_reason=finish)
        return self._event(choices=[choice])

    def _event(self, **fields: Any) -> bytes:
        chunk = ChatCompletionChunk(
            object="chat.completion.chunk", **self.head.chunk_fields() | fields
        )
        return event(chunk.model_dump_json(exclude_unset=True))


@dataclass(frozen=True, slots=True)
class CompletionAnswer:
    head: AnswerHead

    def whole(self, whole: WholeText) -> str:
        return self._json(choices=[_choice(whole.text, whole.finish_word)], usage=whole.usage)

    def opening(self) -> bytes:
        return b""

    def text(self, text: str) -> bytes:
        return event(self._json(choices=[_choice(text, None)]))

    def end(self, finish: FinishWord) -> bytes:
        return event(self._json(choices=[_choice("", finish)]))

    def usage(self, usage: Usage) -> bytes:
        return event(self._json(choices=[], usage=usage))

    def _json(self, **fields: Any) -> str:
        body = Completion(object="text_completion", **self.head.chunk_fields() | fields)
        return body.model_dump_json(exclude_unset=True)


def _choice(text: str, finish: FinishWord | None) -> CompletionChoice:
    return CompletionChoice(index=0, text=text, logprobs=None, finish_reason=finish)
