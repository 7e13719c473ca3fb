"""The answers of the two generation routes in OpenAI's shapes, whole and as stream frames.

Owns the order of a stream's events. Knows no HTTP and no engine beyond its deltas.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from refectory_server.api.choices import Batches, Tally, WholeAnswer, finish_word
from refectory_server.api.logprobs import chat_logprobs, completion_logprobs
from refectory_server.api.responses import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    FinishWord,
    Usage,
)
from refectory_server.api.sse import DONE_EVENT, event
from refectory_server.engine.async_engine import TextDelta
from refectory_server.engine.text_logprobs import TextLogprobs
from refectory_server.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What every chunk of one answer repeats, and what all of them need."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str
    includes_usage: bool
    """A stream ends with a usage chunk, and the others carry `usage: null`."""
    has_logprobs: bool
    tokenizer: Tokenizer
    echoes: Sequence[str]
    """What each choice's text begins with; empty: nothing."""

    def chunk_fields(self) -> dict[str, Any]:
        fields = {"id": self.id, "created": self.created, "model": self.model}
        return fields | {"usage": None} if self.includes_usage else fields


class Answer(Protocol):
    """One route's shapes. The methods from `opening` on return framed events."""

    @property
    def head(self) -> AnswerHead: ...

    def whole(self, whole: WholeAnswer) -> str:
        """The JSON of an answer that is not streamed."""
        ...

    def opening(self, index: int) -> bytes: ...

    def text(self, delta: TextDelta) -> bytes: ...

    def end(self, index: int, finish: FinishWord) -> bytes: ...

    def usage(self, usage: Usage) -> bytes: ...


async def frames(answer: Answer, batches: Batches, tally: Tally) -> AsyncGenerator[bytes, None]:
    """Of each choice opening, text, one finish chunk; then perhaps one usage chunk, `[DONE]`.

    Events that are known together make one frame. The first frame comes with the first delta, so
    an error before it is raised before anything was sent. Closes `batches` in every case.
    """
    frame = b"".join(answer.opening(index) for index in range(tally.num_choices))
    async with aclosing(batches):
        async for deltas in batches:
            for delta in deltas:
                tally.add(delta)
                if delta.text or delta.logprobs:
                    frame += answer.text(delta)
                if delta.finish_reason is not None:
                    frame += answer.end(delta.index, finish_word(delta))
            if tally.is_complete:
                if answer.head.includes_usage:
                    frame += answer.usage(tally.usage())
                yield frame + DONE_EVENT
                return
            if frame:
                yield frame
            frame = b""


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    head: AnswerHead

    def whole(self, whole: WholeAnswer) -> str:
        return ChatCompletion(
            id=self.head.id,
            created=self.head.created,
            model=self.head.model,
            choices=[
                ChatChoice(
                    index=choice.index,
                    message=AssistantMessage(content=choice.text),
                    logprobs=self._logprobs(choice.logprobs),
                    finish_reason=choice.finish_word,
                )
                for choice in whole.choices
            ],
            usage=whole.usage,
        ).model_dump_json()

    def opening(self, index: int) -> bytes:
        return self._choice(index, ChatDelta(role="assistant", content=""))

    def text(self, delta: TextDelta) -> bytes:
        logprobs = self._logprobs(delta.logprobs)
        return self._choice(delta.index, ChatDelta(content=delta.text), logprobs)

    def end(self, index: int, finish: FinishWord) -> bytes:
        return self._choice(index, ChatDelta(), finish=finish)

    def usage(self, usage: Usage) -> bytes:
        return self._event(choices=[], usage=usage)

    def _choice(
        self,
        index: int,
        delta: ChatDelta,
        logprobs: ChatLogprobs | None = None,
        finish: FinishWord | None = None,
    ) -> bytes:
        choice = ChatChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=finish)
        return self._event(choices=[choice])

    def _logprobs(self, entries: Sequence[TextLogprobs]) -> ChatLogprobs | None:
        return chat_logprobs(entries, self.head.tokenizer) if self.head.has_logprobs else None

    def _event(self, **fields: Any) -> bytes:
        chunk = ChatCompletionChunk(
            object="chat.completion.chunk", **self.head.chunk_fields() | fields
        )
        return event(chunk.model_dump_json(exclude_unset=True))


@dataclass(frozen=True, slots=True)
class CompletionAnswer:
    head: AnswerHead

    def whole(self, whole: WholeAnswer) -> str:
        choices = [
            CompletionChoice(
                index=choice.index,
                text=self._echo(choice.index) + choice.text,
                logprobs=self._logprobs(choice.logprobs),
                finish_reason=choice.finish_word,
            )
            for choice in whole.choices
        ]
        return self._json(choices=choices, usage=whole.usage)

    def opening(self, index: int) -> bytes:
        echo = self._echo(index)
        return self._choice(index, echo) if echo else b""

    def text(self, delta: TextDelta) -> bytes:
        return self._choice(delta.index, delta.text, self._logprobs(delta.logprobs))

    def end(self, index: int, finish: FinishWord) -> bytes:
        return self._choice(index, "", finish=finish)

    def usage(self, usage: Usage) -> bytes:
        return event(self._json(choices=[], usage=usage))

    def _choice(
        self,
        index: int,
        text: str,
        logprobs: CompletionLogprobs | None = None,
        finish: FinishWord | None = None,
    ) -> bytes:
        choice = CompletionChoice(index=index, text=text, logprobs=logprobs, finish_reason=finish)
        return event(self._json(choices=[choice]))

    def _echo(self, index: int) -> str:
        return self.head.echoes[index] if self.head.echoes else ""

    def _logprobs(self, entries: Sequence[TextLogprobs]) -> CompletionLogprobs | None:
        return completion_logprobs(entries, self.head.tokenizer) if self.head.has_logprobs else None

    def _json(self, **fields: Any) -> str:
        body = Completion(object="text_completion", **self.head.chunk_fields() | fields)
        return body.model_dump_json(exclude_unset=True)
