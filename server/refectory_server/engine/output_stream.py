"""`OutputStream`: one choice's way out, from engine outputs to the deltas a reader takes.

Text is made when the output arrives, not when it is read, so that a stop string ends the request
in time even if the reader is slow; what is unread merges into one delta, so memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from refectory_server.core.request import FinishReason
from refectory_server.core.stats import RequestTimings
from refectory_server.engine.messages import EngineOutput
from refectory_server.engine.output_processor import OutputProcessor
from refectory_server.engine.text_logprobs import TextLogprobs
from refectory_server.errors import DeadlineExceeded, QueueFull, RequestFailed, ServerError


@dataclass(frozen=True, slots=True)
class TextDelta:
    """News of one request for the API: what has come since the last one.

    The last one has a `finish_reason`; `num_output_tokens` counts ids so far, those whose text
    is held back or cut off by a stop string included.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_preemptions: int
    logprobs: tuple[TextLogprobs, ...] = ()
    """Of the tokens whose text is in this delta or before it, where asked for."""
    index: int = 0
    """Which of the caller's choices it is news of."""


class OutputStream:
    """Written by `AsyncEngine` on each step, read by whoever `on_news` wakes up."""

    def __init__(
        self,
        request_id: str,
        processor: OutputProcessor,
        on_news: Callable[[OutputStream], None],
        *,
        index: int,
        num_prompt_tokens: int,
        arrival_time: float,
    ) -> None:
        self.request_id = request_id
        self.index = index
        self.rejection: str | None = None
        """The limit that refused the request, if one did."""
        self.num_token_steps = 0
        """Steps that brought tokens."""
        self.num_prompt_tokens = num_prompt_tokens
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self._processor = processor
        self._arrival_time = arrival_time
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs: list[TextLogprobs] = []
        self._finish_reason: FinishReason | None = None
        self._error: ServerError | None = None
        self._on_news = on_news
        self._has_delta = False
        self._num_output_tokens = 0
        self._scheduled_time: float | None = None
        self._first_token_time: float | None = None
        self._last_token_time: float | None = None
        self._finish_time: float | None = None

    @property
    def is_ended(self) -> bool:
        """Nothing more will come from the engine."""
        return self._finish_reason is not None

    @property
    def error(self) -> ServerError | None:
        """What ended it, in place of an answer; for the reader once it has had all deltas."""
        return self._error

    @property
    def finish_reason(self) -> FinishReason:
        if self._finish_reason is None:
            raise RuntimeError(f"request {self.request_id} has not ended")
        return self._finish_reason

    def put(self, output: EngineOutput, time: float) -> float | None:
        """Take one step's output. Returns the seconds since the last token (first: since arrival)
        if the output has tokens.
        """
        self.num_cached_tokens = output.num_cached_tokens
        self.num_preemptions = output.num_preemptions
        if output.finish_reason in (FinishReason.ERROR, FinishReason.DEADLINE):
            self._finish_time = time
            self._refuse(output)
            return None
        processed = self._processor.process(output)
        self._text += processed.text
        self._token_ids += processed.token_ids
        self._logprobs += processed.logprobs
        self._num_output_tokens += len(processed.token_ids)
        self._finish_reason = processed.finish_reason
        if self.is_ended:
            self._finish_time = time
        self._has_delta = True
        self._on_news(self)
        if not processed.token_ids:
            return None
        self.num_token_steps += 1
        previous_time = self._last_token_time
        self._last_token_time = time
        if previous_time is None:
            self._scheduled_time = output.scheduled_time
            self._first_token_time = time
            return time - self._arrival_time
        return time - previous_time

    def end(self, finish_reason: FinishReason) -> None:
        """End it from this side, without an error for the reader (who is gone)."""
        self._finish_reason = finish_reason

    def fail(self, message: str) -> None:
        self.fail_with(RequestFailed(f"request {self.request_id} failed: {message}"))

    def fail_with(self, error: ServerError, reason: FinishReason = FinishReason.ERROR) -> None:
        self._error = error
        self._finish_reason = reason
        self._on_news(self)

    def take_delta(self) -> TextDelta | None:
        """What has come since the last one; None: nothing."""
        if not self._has_delta:
            return None
        self._has_delta = False
        delta = TextDelta(
            text=self._text,
            token_ids=tuple(self._token_ids),
            finish_reason=None if self._error is not None else self._finish_reason,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self._num_output_tokens,
            num_preemptions=self.num_preemptions,
            logprobs=tuple(self._logprobs),
            index=self.index,
        )
        self._text, self._token_ids, self._logprobs = "", [], []
        return delta

    def timings(self, now: float) -> RequestTimings:
        """What the request took until its last output came, however late that was read.

        Until `now` where it was ended from this side.
        """
        return RequestTimings(
            arrival_time=self._arrival_time,
            scheduled_time=self._scheduled_time,
            first_token_time=self._first_token_time,
            last_token_time=self._last_token_time,
            finish_time=now if self._finish_time is None else self._finish_time,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self._num_output_tokens,
            num_preemptions=self.num_preemptions,
        )

    def _refuse(self, output: EngineOutput) -> None:
        message = output.message or f"request {self.request_id} ended: {output.finish_reason}"
        if output.rejection is not None:
            self.rejection = output.rejection
            self.fail_with(
                QueueFull(message, reason=output.rejection, retry_after_s=output.retry_after_s)
            )
        elif output.finish_reason is FinishReason.DEADLINE:
            self.fail_with(DeadlineExceeded(message), FinishReason.DEADLINE)
        else:
            self.fail_with(RequestFailed(message))
