"""`RecordingRunner`: a runner whose KV cache holds fingerprints instead of tensors.

Owns one fingerprint per slot. It finds every way in which blocks can be wrong (shared too early,
overwritten, copied from the wrong place, found under a stale hash), because a slot's fingerprint,
like real KV, depends on every token up to its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from refectory_server.core.scheduler_output import (
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from refectory_server.runner.interface import RunnerFacts


def fingerprint(parent: int, token_id: int) -> int:
    """Of a token and of everything before it, `parent` being the fingerprint of that (0: none)."""
    return zlib.crc32(token_id.to_bytes(8, "little"), parent)


def expected_output(
    prompt_token_ids: Sequence[int], seed: int, num_tokens: int, vocab_size: int
) -> list[int]:
    """What a request samples when it is alone: the tokens that no company may change."""
    parent = 0
    for token_id in prompt_token_ids:
        parent = fingerprint(parent, token_id)
    output: list[int] = []
    for _ in range(num_tokens):
        output.append(_sample(parent, seed, vocab_size))
        parent = fingerprint(parent, output[-1])
    return output


def _sample(context: int, seed: int, vocab_size: int) -> int:
    return fingerprint(context, seed) % vocab_size


@dataclass(slots=True)
class _RequestState:
    token_ids: list[int]
    seed: int
    block_ids: tuple[int, ...]
    num_computed_tokens: int


class RecordingRunner:
    """Implements `ModelRunner`. Raises `RuntimeError` for a slot that holds what it should not."""

    def __init__(self, num_blocks: int, block_size: int, *, vocab_size: int = 50) -> None:
        self._facts = RunnerFacts(
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=num_blocks * block_size,
            vocab_size=vocab_size,
            eos_token_ids=(),
            dtype="fingerprint",
            kv_bytes_per_token=4,
            description="recording runner",
        )
        self._slots: list[int | None] = [None] * (num_blocks * block_size)
        self._states: dict[str, _RequestState] = {}

    @property
    def facts(self) -> RunnerFacts:
        return self._facts

    @property
    def known_request_ids(self) -> set[str]:
        return set(self._states)

    def execute_model(
        self, scheduler_output: SchedulerOutput, failing: Iterable[str] = ()
    ) -> ModelRunnerOutput:
        """`failing` requests write garbage in this step and end in `errors`."""
        for request_id in scheduler_output.dropped_request_ids:
            del self._states[request_id]
        self._copy_blocks(scheduler_output)
        self._take_states(scheduler_output)
        failing = set(failing)
        for request_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
            self._write(request_id, num_tokens, is_garbage=request_id in failing)
        sampled: dict[str, int] = {}
        errors: dict[str, str] = {}
        for request_id in scheduler_output.num_scheduled_tokens:
            if request_id in failing:
                errors[request_id] = f"{request_id} was made to fail"
                continue
            state = self._states[request_id]
            context = self._read(request_id)
            if state.num_computed_tokens == len(state.token_ids):
                sampled[request_id] = _sample(context, state.seed, self._facts.vocab_size)
                state.token_ids.append(sampled[request_id])
        return ModelRunnerOutput(sampled, errors)

    def _copy_blocks(self, scheduler_output: SchedulerOutput) -> None:
        sources = {copy.source_id for copy in scheduler_output.block_copies}
        targets = {copy.target_id for copy in scheduler_output.block_copies}
        if sources & targets:
            raise RuntimeError(f"blocks {sources & targets} are source and target of copies")
        size = self._facts.block_size
        for copy in scheduler_output.block_copies:
            source, target = copy.source_id * size, copy.target_id * size
            self._slots[target : target + size] = self._slots[source : source + size]

    def _take_states(self, scheduler_output: SchedulerOutput) -> None:
        for new in scheduler_output.new_requests:
            self._states[new.request_id] = _state_of(new)
        for cached in scheduler_output.cached_requests:
            state = self._states[cached.request_id]
            if cached.num_computed_tokens != state.num_computed_tokens:
                raise RuntimeError(
                    f"{cached.request_id} has {state.num_computed_tokens} tokens computed, "
                    f"the scheduler says {cached.num_computed_tokens}"
                )
            if cached.block_ids is not None:
                state.block_ids = cached.block_ids

    def _write(self, request_id: str, num_tokens: int, *, is_garbage: bool) -> None:
        state = self._states[request_id]
        end = state.num_computed_tokens + num_tokens
        if not 0 < num_tokens <= len(state.token_ids) - state.num_computed_tokens:
            raise RuntimeError(f"{request_id} cannot compute {num_tokens} tokens")
        context = 0
        for position, token_id in enumerate(state.token_ids[:end]):
            context = fingerprint(context, token_id)
            if position >= state.num_computed_tokens:
                self._slots[self._slot(state, position)] = None if is_garbage else context
        state.num_computed_tokens = end

    def _read(self, request_id: str) -> int:
        """Fingerprint of the request's context, every slot of it compared."""
        state = self._states[request_id]
        context = 0
        for position in range(state.num_computed_tokens):
            context = fingerprint(context, state.token_ids[position])
            slot = self._slot(state, position)
            if self._slots[slot] != context:
                raise RuntimeError(
                    f"{request_id} position {position}, slot {slot}: holds {self._slots[slot]}, "
                    f"its own context is {context}"
                )
        return context

    def _slot(self, state: _RequestState, position: int) -> int:
        size = self._facts.block_size
        return state.block_ids[position // size] * size + position % size


def _state_of(new: NewRequestData) -> _RequestState:
    return _RequestState(list(new.token_ids), new.seed, new.block_ids, new.num_computed_tokens)
