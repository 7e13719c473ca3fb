"""A simulated runner from a profile: facts, alphabet, load time, faults. Knows no scheduler."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time

from refectory_server.config import ServerConfig
from refectory_server.core.kv_cache_manager import usable_tokens
from refectory_server.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from refectory_server.errors import StartupError
from refectory_server.runner.interface import ModelRunner, ReportProgress, RunnerFacts
from refectory_server.runner.simulated_model_runner import SimulatedModelRunner, StepClock
from refectory_server.simulation_profile import Faults, SimulationProfile
from refectory_server.tokenizer.byte_tokenizer import ByteTokenizer
from refectory_server.tokenizer.simulated import load_simulated_tokenizer
from refectory_server.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

BYTE_ALPHABET = tuple(b"abcdefghijklmnopqrstuvwxyz ")
_WORD = re.compile(rb" ?[A-Za-z]+")
_NUM_LOAD_REPORTS = 20


def load_simulated_runner(
    profile: SimulationProfile, config: ServerConfig, report: ReportProgress
) -> ModelRunner:
    """Takes the profile's load time. Raises `StartupError`: its fault, or a bad tokenizer."""
    for i in range(_NUM_LOAD_REPORTS):
        report("load_weights", i / _NUM_LOAD_REPORTS)
        time.sleep(profile.load_seconds / _NUM_LOAD_REPORTS)
    if profile.faults.fail_load is not None:
        raise StartupError(profile.faults.fail_load, reason="SimulatedFault")
    tokenizer = load_simulated_tokenizer(profile)
    runner = SimulatedModelRunner(
        _facts(profile, config, tokenizer),
        make_alphabet(tokenizer),
        mean_output_tokens=profile.mean_output_tokens,
        step_seconds=StepClock(profile.step_seconds),
    )
    return runner if profile.faults == Faults() else FaultyModelRunner(runner, profile.faults)


def make_alphabet(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids that answers are made of: letters of a byte tokenizer, plain words of any other."""
    if isinstance(tokenizer, ByteTokenizer):
        return BYTE_ALPHABET
    return tuple(
        token_id
        for token_id in range(tokenizer.vocab_size)
        if token_id not in tokenizer.special_token_ids
        and _WORD.fullmatch(tokenizer.token_bytes(token_id))
    )


def _facts(profile: SimulationProfile, config: ServerConfig, tokenizer: Tokenizer) -> RunnerFacts:
    num_blocks = config.cache.num_gpu_blocks_override or profile.num_blocks
    block_size = config.cache.block_size
    wanted = config.model.max_model_len or profile.max_model_len
    max_model_len = min(wanted, usable_tokens(num_blocks, block_size, config.scheduler.watermark))
    if max_model_len < wanted:
        logger.warning(
            "max_model_len lowered from %d to %d: %d blocks of %d tokens hold no more of a request",
            *(wanted, max_model_len, num_blocks, block_size),
        )
    eos_token_id = tokenizer.eos_token_id
    return RunnerFacts(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=() if eos_token_id is None else (eos_token_id,),
        dtype="simulated",
        kv_bytes_per_token=profile.kv_bytes_per_token,
        description=f"simulated: {profile.description}",
    )


class FaultyModelRunner:
    """A runner that fails as a profile's faults say."""

    def __init__(self, runner: ModelRunner, faults: Faults) -> None:
        self._runner = runner
        self._faults = faults
        self._num_ended = 0

    @property
    def facts(self) -> RunnerFacts:
        return self._runner.facts

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        num_preempted = len(scheduler_output.preemptions)
        self._num_ended += len(scheduler_output.dropped_request_ids) - num_preempted
        if _is_due(self._faults.crash_after_requests, self._num_ended):
            os.kill(os.getpid(), signal.SIGKILL)
        if _is_due(self._faults.hang_after_requests, self._num_ended):
            threading.Event().wait()
        return self._runner.execute_model(scheduler_output)


def _is_due(limit: int | None, count: int) -> bool:
    return limit is not None and count >= limit
