"""Telemetry of all queues of a process: beside a queue's own, each event once, in queues old and new."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from typing_extensions import override

from freshq import Queue, Task
from freshq.errors import Overloaded
from freshq.model.telemetry import ClaimSpan, PutSpan, SettleSpan, Telemetry, everywhere
from freshq.policy import AdmissionLimit, BacklogLimit, ShedReason, WhenFull
from freshq.queue.core import core_of
from tests.conftest import Clock


class Recorded(Telemetry):
    """Counts what it receives, by queue."""

    def __init__(self) -> None:
        self.events: Counter[tuple[str, ...]] = Counter()

    @override
    @contextmanager
    def put(self, span: PutSpan) -> Iterator[None]:
        yield
        self.events[span.queue, "put"] += len(span.receipts)

    @override
    @contextmanager
    def claim(self, span: ClaimSpan) -> Iterator[None]:
        yield
        self.events[span.queue, "claim"] += len(span.claims)

    @override
    @contextmanager
    def settle(self, span: SettleSpan) -> Iterator[None]:
        yield
        self.events[span.queue, "settle"] += len(span.answers)

    @override
    def shed(self, queue: str, reason: ShedReason, tasks: int) -> None:
        self.events[queue, "shed", reason.value] += tasks

    @override
    def exhausted(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self.events[task.queue, "exhausted"] += 1


class Own(Recorded):
    """Telemetry of one queue."""


def work(queue: Queue) -> None:
    """Put a task, claim it, and settle it."""
    queue.put("work")
    (claim,) = queue.claim(1)
    queue.complete(claim)


def once(name: str) -> dict[tuple[str, ...], int]:
    """Return the events of `work` on a queue."""
    return {(name, "put"): 1, (name, "claim"): 1, (name, "settle"): 1}


def test_it_receives_each_event_once_during_the_block() -> None:
    own, everyone = Own(), Recorded()
    before = [Queue.memory(name="plain"), Queue.memory(name="own", telemetry=own)]
    with everywhere(everyone):
        queues = [*before, Queue.memory(name="new"), Queue.memory(name="twice", telemetry=Recorded())]
        assert [core_of(queue).telemetries for queue in queues[:3]] == [
            (everyone,),
            (own, everyone),
            (everyone,),
        ]
        for queue in queues[:3]:
            work(queue)
        work(queues[3])
    assert everyone.events == once("plain") | once("own") | once("new")
    assert own.events == once("own")
    for queue in before:
        work(queue)
    assert everyone.events == once("plain") | once("own") | once("new")
    assert core_of(before[0]).telemetries == ()
    assert own.events == dict.fromkeys(once("own"), 2)


def test_a_queues_own_telemetry_of_the_same_class_comes_before_that_of_all() -> None:
    own = Recorded()
    with everywhere(Recorded()):
        assert core_of(Queue.memory(telemetry=own)).telemetries == (own,)


def test_puts_that_are_turned_away_are_told_with_their_reasons(clock: Clock) -> None:
    told = Recorded()
    full = BacklogLimit(1, WhenFull.REFUSE_NEWEST)
    with everywhere(told):
        queue = Queue.memory(clock=clock, name="q", telemetry=Own(), backlog=full)
        queue.put(1)
        with pytest.raises(Overloaded):
            queue.put(2)
    assert told.events["q", "shed", "overflow"] == 1


def test_evicted_and_stale_tasks_are_told(clock: Clock, sqlite_url: str) -> None:
    told = Recorded()
    with (
        everywhere(told),
        Queue.sql(sqlite_url, clock=clock, name="q", telemetry=Own(), backlog=BacklogLimit(2)) as queue,
    ):
        queue.put_many([{"payload": 1, "max_age_seconds": 5} for _ in range(3)])
        clock.advance(6)
        queue.admin.upkeep()
        queue.stats()
    assert told.events["q", "shed", "overflow"] == 1
    assert told.events["q", "shed", "expired"] == 2


def test_a_last_lease_that_expires_is_told(clock: Clock) -> None:
    told = Recorded()
    with everywhere(told):
        queue = Queue.memory(clock=clock, name="q", telemetry=Own(), max_attempts=1, lease_seconds=10)
        queue.put(1)
        queue.claim(1)
        clock.advance(11)
        queue.admin.recover()
    assert told.events["q", "exhausted"] == 1


def test_admission_is_told(clock: Clock) -> None:
    told = Recorded()
    with everywhere(told):
        queue = Queue.memory(
            clock=clock, name="q", max_age_seconds=1, admission=AdmissionLimit(), telemetry=Own()
        )
        assert core_of(queue).rules.admission is not None
        core_of(queue).rules.meter.turned_away(clock(), Counter({ShedReason.ADMISSION: 3}))
    assert told.events["q", "shed", "admission"] == 3
