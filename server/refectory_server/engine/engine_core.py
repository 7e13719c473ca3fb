"""`EngineCore`: the step. Owns a scheduler and a runner; one thread drives it.

Does not know text, HTTP, or where its messages come from and go to.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from refectory_server.config import SchedulerConfig
from refectory_server.core.kv_cache_manager import KVCacheManager
from refectory_server.core.request import FinishReason, Request
from refectory_server.core.request_update import RequestUpdate
from refectory_server.core.scheduler import Scheduler
from refectory_server.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from refectory_server.engine.messages import (
    AbortRequests,
    AddGroup,
    AddRequest,
    EngineOutput,
    StepOutputs,
    ToEngine,
    choice_id,
)
from refectory_server.errors import InvalidRequest, QueueFull
from refectory_server.runner.interface import ModelRunner

logger = logging.getLogger(__name__)


class EngineCore:
    """Takes messages between steps and answers with one `StepOutputs` a step."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._rejections: list[EngineOutput] = []
        self._has_news = False

    @classmethod
    def build(
        cls,
        runner: ModelRunner,
        scheduler_config: SchedulerConfig,
        *,
        enable_prefix_caching: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> EngineCore:
        """The engine for a loaded runner: its facts size the scheduler's block pool."""
        facts = runner.facts
        kv_cache_manager = KVCacheManager(
            num_blocks=facts.num_blocks,
            block_size=facts.block_size,
            enable_prefix_caching=enable_prefix_caching,
            watermark=scheduler_config.watermark,
        )
        step_s = facts.step_s if scheduler_config.max_num_batched_tokens is None else None
        _log_step_limit(scheduler_config.token_limit, step_s)
        scheduler = Scheduler(
            scheduler_config,
            kv_cache_manager,
            max_model_len=facts.max_model_len,
            eos_token_ids=facts.eos_token_ids,
            step_s=step_s,
        )
        return cls(scheduler, runner, clock)

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do: requests, or news that nobody was told yet."""
        return self._has_news or self._scheduler.has_work

    def handle(self, message: ToEngine) -> None:
        """Take one message. A refused request is answered by the next `StepOutputs`."""
        self._has_news = True
        match message:
            case AddRequest():
                self._add([message])
            case AddGroup(requests):
                self._add(requests)
            case AbortRequests(request_ids):
                # Nobody waits for these any more, so there is no answer, only new stats.
                self._scheduler.abort(request_ids)

    def step(self) -> StepOutputs:
        return self.execute(self.schedule())

    def schedule(self) -> SchedulerOutput:
        """The first half of a step: decide."""
        scheduler_output = self._scheduler.schedule(self._clock())
        _log_preemptions(scheduler_output)
        return scheduler_output

    def execute(self, scheduler_output: SchedulerOutput) -> StepOutputs:
        """The second half: compute and record."""
        started = self._clock()
        runner_output = self._runner.execute_model(scheduler_output)
        self._scheduler.observe_step(scheduler_output, self._clock() - started)
        updates = self._scheduler.update_from_output(scheduler_output, runner_output)
        return self._outputs([_make_output(update, runner_output) for update in updates])

    def report(self) -> StepOutputs | None:
        """Between the halves: who was refused, and the load as it is from now on.

        A step can take seconds, and nobody that it computes shall count as waiting meanwhile.
        None where nobody came: the last step's numbers still hold.
        """
        if not self._has_news:
            return None
        report = self._outputs([])
        # The tokens are told with the step's outputs, once.
        return msgspec.structs.replace(
            report, stats=dataclasses.replace(report.stats, num_scheduled_tokens=0)
        )

    def check_integrity(self) -> None:
        """Raise where scheduler and blocks disagree. For tests and debugging."""
        self._scheduler.check_integrity()

    def _add(self, messages: Sequence[AddRequest]) -> None:
        """All of them, each with all of its choices, or none."""
        added: list[str] = []
        try:
            for message in messages:
                for request in _choices(message):
                    self._scheduler.add_request(request)
                    added.append(request.request_id)
        except (QueueFull, InvalidRequest, ValueError) as error:
            self._scheduler.abort(added)
            self._rejections.append(_make_rejection(messages[0].request_id, error))

    def _outputs(self, outputs: list[EngineOutput]) -> StepOutputs:
        outputs = self._rejections + outputs
        self._rejections = []
        self._has_news = False
        return StepOutputs(outputs, self._scheduler.stats(), self._clock())


def _choices(message: AddRequest) -> Iterator[Request]:
    """The requests that a message stands for; those after the first share its prompt's blocks."""
    params = dataclasses.replace(message.sampling_params, n=1)
    for index in range(message.sampling_params.n):
        yield Request(
            choice_id(message.request_id, index),
            message.prompt_token_ids,
            params,
            seed=message.seed + index,
            arrival_time=message.arrival_time,
            deadline=message.deadline,
            priority=message.priority,
            cache_salt=message.cache_salt,
            lora_id=message.lora_id,
            parent_id=message.request_id if index else None,
            choice_index=index,
        )


def _make_rejection(request_id: str, error: Exception) -> EngineOutput:
    rejection, retry_after_s = None, 0
    if isinstance(error, QueueFull):
        rejection, retry_after_s = error.reason, error.retry_after_s
    return EngineOutput(
        request_id,
        finish_reason=FinishReason.ERROR,
        message=str(error),
        rejection=rejection,
        retry_after_s=retry_after_s,
    )


def _make_output(update: RequestUpdate, runner_output: ModelRunnerOutput) -> EngineOutput:
    # Only news with a token is of this step: log-probabilities pass the scheduler by.
    has_token = bool(update.new_token_ids)
    return EngineOutput.from_update(
        update, runner_output.logprobs.get(update.request_id) if has_token else None
    )


def _log_step_limit(token_limit: int, step_s: float | None) -> None:
    if step_s is None:
        logger.info("a step holds at most %d tokens", token_limit)
    else:
        logger.info(
            "a step holds as many tokens as take about %.3f s by the steps before it, at most %d",
            *(step_s, token_limit),
        )


def _log_preemptions(scheduler_output: SchedulerOutput) -> None:
    for preemption in scheduler_output.preemptions:
        logger.info(
            "request %s preempted for want of KV blocks: %d tokens will be computed again",
            preemption.request_id,
            preemption.num_lost_tokens,
        )
