"""Properties of the whole core over random arrivals, aborts, failures and pool sizes.

A state machine drives the real scheduler with a runner whose KV cache holds a fingerprint of every
slot's context. Checked after every step: conservation of blocks, the limits, the order of service,
progress, and that each request's slots hold its own context. Checked at the end: every request
ended once, with the tokens it would have sampled alone, and every block is free.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from refectory_server.core.request import FinishReason, Request, RequestStatus
from refectory_server.core.request_queue import RANK_BY_POLICY
from refectory_server.core.request_update import RequestUpdate
from refectory_server.core.scheduler_output import SchedulerOutput
from refectory_server.errors import PromptTooLong, QueueFull
from refectory_server.testing.recording_runner import RecordingRunner, expected_output
from refectory_server.testing.requests import make_request
from refectory_server.testing.schedulers import make_scheduler

Policy = Literal["fcfs", "priority"]
VOCAB_SIZE = 30
EOS_TOKEN_ID = 29
MAX_STEPS_TO_END = 2000
# Few and short, so that random prompts share prefixes of every length.
PREFIXES = ((), (1,) * 9, (1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3), tuple(range(20)))


@dataclass
class Record:
    """What a test knows of one request: what it asked for and all it was told."""

    request: Request
    output: list[int] = field(default_factory=list)
    last: RequestUpdate | None = None

    @property
    def is_ended(self) -> bool:
        return self.last is not None


class CoreMachine(RuleBasedStateMachine):
    policy: Policy = "fcfs"

    @initialize(
        pool_tokens=st.integers(4, 60),
        block_size=st.sampled_from((1, 2, 3, 4)),
        max_num_seqs=st.sampled_from((1, 2, 4, 6)),
        spare_budget=st.sampled_from((0, 1, 5, 30)),
        threshold=st.sampled_from((0, 0, 1, 3)),
        watermark=st.sampled_from((0.0, 0.0, 0.01, 0.2)),
        prefix_caching=st.sampled_from((True, True, False)),
        max_model_len=st.sampled_from((1000, 1000, 12)),
        queue_limit=st.sampled_from((100, 100, 3)),
        queue_token_limit=st.sampled_from((None, None, None, 30)),
    )
    def start(
        self,
        pool_tokens: int,
        block_size: int,
        max_num_seqs: int,
        spare_budget: int,
        threshold: int,
        watermark: float,
        prefix_caching: bool,
        max_model_len: int,
        queue_limit: int,
        queue_token_limit: int | None,
    ) -> None:
        num_blocks = pool_tokens // block_size
        self.budget = max_num_seqs + spare_budget
        self.max_num_seqs = max_num_seqs
        self.threshold = threshold
        self.max_model_len = max_model_len
        small = make_scheduler(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_batched_tokens=self.budget,
            max_num_seqs=max_num_seqs,
            scheduling_policy=self.policy,
            long_prefill_token_threshold=threshold,
            watermark=watermark,
            max_num_queued_reqs=queue_limit,
            max_num_queued_tokens=queue_token_limit,
            enable_prefix_caching=prefix_caching,
            max_model_len=max_model_len,
            eos_token_ids=(EOS_TOKEN_ID,),
        )
        self.scheduler, self.kv = small.scheduler, small.kv
        self.runner = RecordingRunner(num_blocks, block_size, vocab_size=VOCAB_SIZE)
        self.now = 0.0
        self.records: list[Record] = []
        self.live: dict[str, Record] = {}
        self.first_served: list[Request] = []

    @rule(
        prefix=st.sampled_from(PREFIXES),
        cut=st.integers(0, 20),
        suffix=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=6),
        num_groups=st.integers(1, 3),
        num_choices=st.sampled_from((1, 1, 1, 2, 3)),
        max_tokens=st.sampled_from((None, 1, 3, 10, 30)),
        ignore_eos=st.booleans(),
        priority=st.integers(-1, 1),
        cache_salt=st.sampled_from((None, None, None, "tenant")),
        lora_id=st.sampled_from((None, None, None, 0)),
        patience=st.sampled_from((None, None, 0, 20)),
        reused_id=st.sampled_from((None, None, None, 0, 1)),
    )
    def add(
        self,
        prefix: tuple[int, ...],
        cut: int,
        suffix: list[int],
        num_groups: int,
        num_choices: int,
        max_tokens: int | None,
        ignore_eos: bool,
        priority: int,
        cache_salt: str | None,
        lora_id: int | None,
        patience: int | None,
        reused_id: int | None,
    ) -> None:
        for group in range(num_groups):
            name = f"fresh{len(self.records)}" if reused_id is None else f"again{reused_id + group}"
            prompt = [*prefix[:cut], *suffix, group]
            for choice in range(num_choices):
                request = make_request(
                    f"{name}-{choice}",
                    prompt,
                    max_tokens=max_tokens,
                    ignore_eos=ignore_eos,
                    seed=len(self.records),
                    arrival_time=self.now,
                    deadline=None if patience is None else self.now + patience,
                    priority=priority,
                    cache_salt=cache_salt,
                    lora_id=lora_id,
                    parent_id=f"{name}-0" if choice else None,
                )
                self.add_one(request)

    def add_one(self, request: Request) -> None:
        stats = self.scheduler.stats()
        room = min(self.max_model_len, self.kv.max_request_tokens)
        parent = self.live.get(request.parent_id or "")
        try:
            self.scheduler.add_request(request)
        except PromptTooLong:
            assert request.num_prompt_tokens >= room
        except QueueFull:
            assert stats.num_waiting > 0
        except ValueError:
            # Only where an id is given out twice: it is in use, or names another parent by now.
            assert request.request_id in self.live or (
                parent is not None and sharing_key(parent.request) != sharing_key(request)
            )
        else:
            assert request.request_id not in self.live
            assert parent is None or sharing_key(parent.request) == sharing_key(request)
            wanted = request.sampling_params.max_tokens
            assert request.max_output_tokens == min(
                room - request.num_prompt_tokens, room if wanted is None else wanted
            )
            record = Record(request)
            self.records.append(record)
            self.live[request.request_id] = record

    @rule(seconds=st.integers(1, 10))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    def abort_some(self, data: st.DataObject) -> list[str]:
        choices = st.sampled_from([None, None, None, *sorted(self.live)])
        drawn = data.draw(st.lists(choices, max_size=2), label="aborted")
        ids = [request_id for request_id in drawn if request_id is not None]
        updates = self.scheduler.abort([*ids, "unknown"])
        assert [update.request_id for update in updates] == list(dict.fromkeys(ids))
        assert all(update.finish_reason is FinishReason.ABORT for update in updates)
        self.hear(updates)
        return ids

    @precondition(lambda self: self.live)
    @rule(num_steps=st.integers(1, 12))
    def steps(self, num_steps: int) -> None:
        for _ in range(num_steps):
            output = self.schedule()
            runner_output = self.runner.execute_model(output)
            self.hear(self.scheduler.update_from_output(output, runner_output))
            self.is_consistent()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def troubled_step(self, data: st.DataObject) -> None:
        """Requests leave before it and while it is being computed, and one may fail in it."""
        self.abort_some(data)
        self.scheduler.check_integrity()
        output = self.schedule()
        failing: list[str] = []
        scheduled = list(output.num_scheduled_tokens)
        if scheduled:
            failing = data.draw(st.lists(st.sampled_from(scheduled), max_size=1), label="failing")
        runner_output = self.runner.execute_model(output, failing)
        for request_id in dict.fromkeys(self.abort_some(data)):
            self.add_one(make_request(request_id, [3] * 5, arrival_time=self.now))
        self.scheduler.check_integrity()
        self.hear(self.scheduler.update_from_output(output, runner_output))

    def schedule(self) -> SchedulerOutput:
        output = self.scheduler.schedule(self.now)
        self.hear(self.scheduler.take_updates())
        counts = output.num_scheduled_tokens
        self.check_limits(counts)
        self.check_order(output)
        assert bool(counts) == self.scheduler.has_work
        # Everyone who runs and was not preempted has a token; rows are the requests listed.
        running = [r for r in self.live.values() if r.request.status is RequestStatus.RUNNING]
        assert set(counts) == {record.request.request_id for record in running}
        listed = [data.request_id for data in output.cached_requests]
        listed += [data.request_id for data in output.new_requests]
        assert listed == list(counts)
        for preemption in output.preemptions:
            assert preemption.request_id in output.dropped_request_ids
            assert preemption.request_id not in counts
        return output

    def check_limits(self, counts: dict[str, int]) -> None:
        assert sum(counts.values()) <= self.budget
        assert len(counts) <= self.max_num_seqs
        assert all(count >= 1 for count in counts.values())
        if self.threshold:
            assert all(count <= self.threshold for count in counts.values())

    def check_order(self, output: SchedulerOutput) -> None:
        """Nobody is admitted past one who waits with a better rank; fcfs never at all."""
        rank = RANK_BY_POLICY[self.policy]
        requests = [record.request for record in self.live.values()]
        waiting = [rank(r) for r in requests if r.status is not RequestStatus.RUNNING]
        for new in output.new_requests:
            request = self.live[new.request_id].request
            assert not waiting or rank(request) < min(waiting)
            if request.num_preemptions == 0:
                self.first_served.append(request)
                assert request.scheduled_time == self.now
                assert request.num_cached_tokens <= self.longest_shareable_prefix(request)
        if self.policy == "fcfs":
            order = [request.arrival_index for request in self.first_served]
            assert order == sorted(order)

    def longest_shareable_prefix(self, request: Request) -> int:
        """Tokens that `request` has in common with one served before, of its salt and adapter."""
        served = [
            record.request
            for record in self.records
            if record.request.scheduled_time is not None
            and record.request is not request
            and record.request.cache_salt == request.cache_salt
            and record.request.lora_id == request.lora_id
        ]
        return max((common_length(r.token_ids, request.token_ids) for r in served), default=0)

    def hear(self, updates: Sequence[RequestUpdate]) -> None:
        for update in updates:
            record = self.live[update.request_id]
            record.output.extend(update.new_token_ids)
            if update.finish_reason is not None:
                record.last = update
                del self.live[update.request_id]

    @invariant()
    def is_consistent(self) -> None:
        self.scheduler.check_integrity()
        stats = self.scheduler.stats()
        assert stats.num_running + stats.num_waiting == len(self.live)
        for record in self.live.values():
            assert list(record.request.token_ids[record.request.num_prompt_tokens :]) == (
                record.output
            )

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(MAX_STEPS_TO_END):
            if not self.scheduler.has_work:
                break
            output = self.schedule()
            runner_output = self.runner.execute_model(output)
            self.hear(self.scheduler.update_from_output(output, runner_output))
            self.scheduler.check_integrity()
        assert not self.scheduler.has_work
        assert self.live == {}
        assert self.kv.num_free_blocks == self.kv.num_blocks
        assert self.kv._tables == {}
        assert self.scheduler._parents == {}
        for record in self.records:
            check_outcome(record)


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def sharing_key(request: Request) -> tuple[Any, ...]:
    """What a child must have in common with its parent."""
    prompt = tuple(request.token_ids[: request.num_prompt_tokens])
    return (prompt, request.cache_salt, request.lora_id, request.priority)


def check_outcome(record: Record) -> None:
    """The request ended for a reason that its own tokens explain."""
    request, last = record.request, record.last
    assert last is not None
    assert request.finish_reason is last.finish_reason
    prompt = request.token_ids[: request.num_prompt_tokens]
    assert record.output == expected_output(prompt, request.seed, len(record.output), VOCAB_SIZE)
    ends = [
        position
        for position, token_id in enumerate(record.output)
        if token_id == EOS_TOKEN_ID and not request.sampling_params.ignore_eos
    ]
    match last.finish_reason:
        case FinishReason.STOP:
            assert ends == [len(record.output) - 1]
        case FinishReason.LENGTH:
            assert ends == []
            assert len(record.output) == request.max_output_tokens
        case FinishReason.DEADLINE:
            assert record.output == []
            assert last.scheduled_time is None
        case FinishReason.ERROR:
            assert last.message == f"{request.request_id} was made to fail"
            assert last.scheduled_time is not None
        case _:
            assert last.finish_reason is FinishReason.ABORT
    if last.finish_reason is not FinishReason.ABORT:
        assert (last.message is not None) == (
            last.finish_reason in (FinishReason.ERROR, FinishReason.DEADLINE)
        )


class PriorityMachine(CoreMachine):
    policy: Policy = "priority"


@pytest.mark.parametrize("machine", [CoreMachine, PriorityMachine])
def test_core_holds_its_promises(machine: type[CoreMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=150, stateful_step_count=40))
