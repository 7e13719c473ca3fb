"""`OutputProcessor`: the text side of one request's output.

Turns the engine's token ids into text, ends the request at a stop string, counts ids. Does not
know queues, HTTP, or other requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from refectory_server.core.request import FinishReason
from refectory_server.engine.messages import EngineOutput
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
        self._finish_reason: FinishReason | None = None

    def process(self, output: EngineOutput) -> ProcessedOutput:
        """Take one step's news. After the last one nothing is held back."""
        if self._finish_reason is not None:
            raise RuntimeError(
                f"request {output.request_id} has output after its end ({self._finish_reason})"
            )
        token_ids = output.new_token_ids
        pieces: list[str] = []
        for index, token_id in enumerate(token_ids):
            is_last = output.finish_reason is not None and index == len(token_ids) - 1
            if is_last and output.finish_reason is FinishReason.STOP and self._is_silent(token_id):
                break
            # One token at a time, so that the ids end with the one that completed a stop string.
            text, matched = self._stop_strings.append(self._detokenizer.append((token_id,)))
            pieces.append(text)
            if matched is not None:
                return self._stop(pieces, token_ids[: index + 1])
        if output.finish_reason is not None:
            text, matched = self._stop_strings.append(self._detokenizer.flush())
            pieces.append(text)
            if matched is not None:
                return self._stop(pieces, token_ids)
            pieces.append(self._stop_strings.flush())
        self._finish_reason = output.finish_reason
        return ProcessedOutput("".join(pieces), tuple(token_ids), output.finish_reason)

    def _is_silent(self, ending_token_id: int) -> bool:
        """Whether the token that ended the request stays out of the text, special or not."""
        params = self._params
        return params.skip_special_tokens or ending_token_id in params.stop_token_ids

    def _stop(self, pieces: Sequence[str], token_ids: Sequence[int]) -> ProcessedOutput:
        self._finish_reason = FinishReason.STOP
        return ProcessedOutput("".join(pieces), tuple(token_ids), FinishReason.STOP)
