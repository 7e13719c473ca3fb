"""`OutputProcessor`: the text side of one request's output.

Turns the engine's token ids into text, ends the request at a stop string, counts ids, holds
log-probabilities back until their text is out. Does not know queues, HTTP, or other requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from refectory_server.core.request import FinishReason
from refectory_server.engine.messages import EngineOutput
from refectory_server.engine.text_logprobs import PendingLogprobs, TextLogprobs
from refectory_server.sampling_params import SamplingParams
from refectory_server.tokenizer.detokenizer import IncrementalDetokenizer
from refectory_server.tokenizer.stop_strings import StopStrings
from refectory_server.tokenizer.tokenizer import Tokenizer

_PROMPT_TAIL_TOKENS = 16
"""Enough to tell whether text precedes the output, and to hold an unfinished character."""


@dataclass(frozen=True, slots=True)
class ProcessedOutput:
    """What one `EngineOutput` adds to the request."""

    text: str
    token_ids: tuple[int, ...]
    """Ids that count, the one that ended the request included."""
    finish_reason: FinishReason | None
    """STOP also where a stop string ended the request here while the engine goes on."""
    logprobs: tuple[TextLogprobs, ...] = ()
    """In the order of the ids, some of them later; by the end one for each, if asked for."""


class OutputProcessor:
    """Fed by one caller, in the order of the steps; nothing after a finish reason."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        self._params = params
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, prompt_token_ids[-_PROMPT_TAIL_TOKENS:], params.skip_special_tokens
        )
        self._stop_strings = StopStrings(params.stop)
        self._logprobs = PendingLogprobs()
        self._num_tokens = 0
        self._num_decoded_chars = 0
        self._num_emitted_chars = 0
        self._finish_reason: FinishReason | None = None

    def process(self, output: EngineOutput) -> ProcessedOutput:
        """Take one step's news. After the last one nothing is held back."""
        if self._finish_reason is not None:
            raise RuntimeError(
                f"request {output.request_id} has output after its end ({self._finish_reason})"
            )
        token_ids = output.new_token_ids
        pieces: list[str] = []
        has_silent_end = False
        for index, token_id in enumerate(token_ids):
            self._num_tokens += 1
            if output.logprobs:
                self._logprobs.add(token_id, output.logprobs[index], self._num_decoded_chars)
            is_last = output.finish_reason is not None and index == len(token_ids) - 1
            if is_last and output.finish_reason is FinishReason.STOP and self._is_silent(token_id):
                has_silent_end = True
                break
            # One token at a time, so that the ids end with the one that completed a stop string.
            if self._append(self._detokenizer.append((token_id,)), pieces):
                return self._stop(pieces, token_ids[: index + 1])
        if output.finish_reason is None:
            logprobs = self._logprobs.release(self._num_emitted_chars)
            return ProcessedOutput("".join(pieces), tuple(token_ids), None, logprobs)
        if self._append(self._detokenizer.flush(), pieces):
            return self._stop(pieces, token_ids)
        pieces.append(self._stop_strings.flush())
        self._finish_reason = output.finish_reason
        return ProcessedOutput(
            "".join(pieces),
            tuple(token_ids),
            output.finish_reason,
            self._logprobs.release_all(is_last_in_text=not has_silent_end),
        )

    def _append(self, text: str, pieces: list[str]) -> bool:
        """Add what of the text may go out; whether a stop string ended it."""
        self._num_decoded_chars += len(text)
        may_match = self._num_tokens > self._params.min_tokens
        emitted, matched = self._stop_strings.append(text, may_match=may_match)
        if matched is not None and self._params.include_stop_str_in_output:
            emitted += matched
        pieces.append(emitted)
        self._num_emitted_chars += len(emitted)
        return matched is not None

    def _is_silent(self, ending_token_id: int) -> bool:
        """Whether the token that ended the request stays out of the text, special or not."""
        params = self._params
        if params.include_stop_str_in_output:
            return False
        return params.skip_special_tokens or ending_token_id in params.stop_token_ids

    def _stop(self, pieces: Sequence[str], token_ids: Sequence[int]) -> ProcessedOutput:
        self._finish_reason = FinishReason.STOP
        return ProcessedOutput(
            "".join(pieces),
            tuple(token_ids),
            FinishReason.STOP,
            self._logprobs.release(self._num_emitted_chars) + self._logprobs.release_cut(),
        )
