"""`OutputGroup`: the streams of one caller's request, choice by choice, read together.

Owns the waiting: one event for all of them, so that n choices need no n tasks. Does not know the
engine.
"""

from __future__ import annotations

import asyncio

from refectory_server.engine.messages import AddRequest, choice_id
from refectory_server.engine.output_processor import OutputProcessor
from refectory_server.engine.output_stream import OutputStream, TextDelta
from refectory_server.errors import ServerError
from refectory_server.sampling_params import SamplingParams
from refectory_server.tokenizer.tokenizer import Tokenizer


class OutputGroup:
    """Read by one coroutine."""

    def __init__(self) -> None:
        self.streams: list[OutputStream] = []
        self._fresh: dict[int, OutputStream] = {}
        self._news = asyncio.Event()
        self._num_finished = 0
        self._error: ServerError | None = None

    @property
    def is_drained(self) -> bool:
        """The reader has had everything, all finish reasons included."""
        return self._num_finished == len(self.streams)

    def add_choices(
        self, request: AddRequest, params: SamplingParams, tokenizer: Tokenizer
    ) -> None:
        """A stream for each choice of a prompt; `params` with the stop strings."""
        for index in range(params.n):
            self.streams.append(
                OutputStream(
                    choice_id(request.request_id, index),
                    OutputProcessor(tokenizer, request.prompt_token_ids, params),
                    self._take_notice,
                    index=len(self.streams),
                    num_prompt_tokens=len(request.prompt_token_ids),
                    arrival_time=request.arrival_time,
                )
            )

    async def next_deltas(self) -> list[TextDelta]:
        """Wait for news: one delta of each choice that has any.

        Raises the error that ended one of them, after all that came before it: then the others
        are of no use to the caller.
        """
        await self._news.wait()
        self._news.clear()
        fresh, self._fresh = self._fresh, {}
        deltas = []
        for stream in fresh.values():
            delta = stream.take_delta()
            if delta is not None:
                deltas.append(delta)
                self._num_finished += delta.finish_reason is not None
            self._error = self._error or stream.error
        if self._error is not None:
            if not deltas:
                raise self._error
            self._news.set()  # the tokens first, then the error
        return deltas

    def _take_notice(self, stream: OutputStream) -> None:
        self._fresh[stream.index] = stream
        self._news.set()
