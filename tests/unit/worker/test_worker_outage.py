"""Workers while the store does not answer, or answers slowly."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from freshq import Queue, StoreError, Task, Worker
from freshq.errors import DamagedTask, Unreachable
from freshq.policy.retry import Backoff
from freshq.stores.base import Guard
from freshq.stores.memory import MemoryStore
from freshq.telemetry import Outcome
from freshq.worker import background, settle
from freshq.worker import loop as claim_backoff
from tests.conftest import Clock
from tests.support.patience import PATIENCE_SECONDS
from tests.support.worker_threads import InThread, Outage, Quiet, lease_of, wait_until


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_backoff, "CLAIM_BACKOFF", Backoff(0.02, 0.05))
    monkeypatch.setattr(settle, "SETTLE_BACKOFF", Backoff(0.02, 0.05))


class Running(InThread):
    """Its runs last until they are released."""

    def __init__(self, queue: Queue, concurrency: int) -> None:
        self.started, self.observer = Counter[str](), Quiet()
        options: dict[str, Any] = {"concurrency": concurrency, "poll_seconds": 0.01}
        super().__init__(Worker(queue, self._run, observer=self.observer, **options))

    def _run(self, task: Task) -> None:
        self.started[task.task_id] += 1
        assert self.release.wait(PATIENCE_SECONDS)


@contextmanager
def working(queue: Queue, concurrency: int, tasks: int = 4) -> Iterator[Running]:
    """Start a worker and some tasks that run until they are released."""
    queue.put_many([{"payload": 0, "task_id": str(number)} for number in range(tasks)])
    with Running(queue, concurrency) as work:
        wait_until(lambda: work.started.total() == tasks)
        yield work


def leases_of(queue: Queue, tasks: int = 4) -> set[float]:
    return {lease_of(queue, str(number)) for number in range(tasks)}


class Damaged(MemoryStore):
    """A store that finds a finished task damaged, as DynamoDB would."""

    def __init__(self, task_id: str) -> None:
        super().__init__()
        self.task_id, self.damage, self.refused = task_id, threading.Event(), 0

    def replace(self, task: Task, guard: Guard) -> Task:
        if task.task_id == self.task_id and self.damage.is_set():
            self.refused += 1
            raise StoreError("refused")
        return super().replace(task, guard)

    def get(self, task_id: str) -> Task | None:
        if task_id == self.task_id and self.damage.is_set():
            raise DamagedTask(task_id, KeyError("payload"))
        return super().get(task_id)


class TestOutage:
    def test_of_thirty_seconds_costs_no_lease_and_no_task(self, clock: Clock) -> None:
        store = Outage()
        queue = Queue(store, clock=clock, lease_seconds=60)
        with working(queue, concurrency=5) as work:
            clock.advance(25)
            store.down.set()
            clock.advance(30)
            wait_until(lambda: store.refused["claim"] >= 8 and store.refused["replace"] >= 8)
            store.down.clear()
            wait_until(lambda: leases_of(queue) == {clock.now + 60})
            queue.put("late", task_id="late")
            work.release.set()
            wait_until(lambda: queue.stats().success == 5)
            assert work.ended().outcomes[Outcome.SUCCEEDED] == 5
        assert set(work.started.values()) == {1}

    def test_runs_that_end_in_an_outage_longer_than_their_leases_settle_afterwards(
        self, clock: Clock
    ) -> None:
        store = Outage()
        queue = Queue(store, clock=clock, lease_seconds=20)
        with working(queue, concurrency=4) as work:
            store.down.set()
            work.release.set()
            wait_until(lambda: len(store.unchanged) == 4)
            clock.advance(30)
            wait_until(lambda: store.refused["get"] >= 4)
            store.down.clear()
            wait_until(lambda: len(work.observer.settlements) == 4)
            assert queue.stats().success == 4
        assert set(work.started.values()) == {1}

    def test_a_worker_that_drains_in_an_outage_ends_with_its_leases(self, clock: Clock) -> None:
        store = Outage()
        queue = Queue(store, clock=clock, lease_seconds=20)
        with working(queue, concurrency=4) as work:
            store.down.set()
            work.worker.stop()
            work.release.set()
            wait_until(lambda: store.refused["replace"] >= 4)
            clock.advance(30)
            assert work.ended().outcomes[Outcome.UNSETTLED] == 4

    def test_a_damaged_task_that_the_store_never_settles_keeps_no_slot(self, clock: Clock) -> None:
        store = Damaged("0")
        queue = Queue(store, clock=clock, lease_seconds=20)
        with working(queue, concurrency=1, tasks=1) as work:
            store.damage.set()
            work.release.set()
            wait_until(lambda: store.refused >= 2)
            clock.advance(30)
            wait_until(
                lambda: [end for _task, end, _error in work.observer.settlements] == [Outcome.UNSETTLED]
            )
            queue.put("other", task_id="other")
            wait_until(lambda: queue.stats().success == 1)

    def test_it_ends_the_worker_after_give_up_seconds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store, moments = Outage(), count(0, 0.02)
        store.down.set()
        # Time passes by looking at it.
        monkeypatch.setattr(claim_backoff, "time", SimpleNamespace(monotonic=lambda: next(moments)))
        with pytest.raises(Unreachable):
            Worker(Queue(store), lambda task: task, poll_seconds=0.001, give_up_seconds=1).run()
        assert store.refused["claim"] >= 4

    def test_a_condition_that_asks_the_store_is_asked_again(self) -> None:
        store = Outage()
        queue = Queue(store)
        queue.put("work", task_id="a")
        asked = [Unreachable("no answer"), Unreachable("no answer")]

        def done() -> bool:
            if asked:
                raise asked.pop()
            return queue.stats().success == 1

        report = Worker(queue, lambda _task: None, poll_seconds=0.01).run(until=done)
        assert report.outcomes[Outcome.SUCCEEDED] == 1
        assert asked == []


class SlowChanges(MemoryStore):
    """A store whose changes wait until a number of them is there, or indefinitely."""

    def __init__(self, together: int) -> None:
        super().__init__()
        self.barrier = threading.Barrier(together, timeout=PATIENCE_SECONDS)
        self.slow = threading.Event()
        self.hangs: str | None = None
        self.answer = threading.Event()

    def replace(self, task: Task, guard: Guard) -> Task:
        if task.task_id == self.hangs:
            assert self.answer.wait(PATIENCE_SECONDS)
        elif self.slow.is_set():
            self.barrier.wait()
        return super().replace(task, guard)


class TestRenewal:
    def test_leases_are_extended_many_at_a_time(self, clock: Clock) -> None:
        store = SlowChanges(together=background.MAX_EXTENSIONS)
        queue = Queue(store, clock=clock, lease_seconds=20)
        tasks = 2 * background.MAX_EXTENSIONS
        with working(queue, concurrency=tasks, tasks=tasks):
            store.slow.set()
            clock.advance(15)
            wait_until(lambda: leases_of(queue, tasks) == {clock.now + 20})
            store.slow.clear()

    def test_an_extension_that_hangs_costs_no_other_run_its_lease(self, clock: Clock) -> None:
        store = SlowChanges(together=1)
        queue = Queue(store, clock=clock, lease_seconds=20)
        with working(queue, concurrency=4):
            store.hangs = "2"
            for _ in range(3):
                clock.advance(15)
                wait_until(lambda: clock.now + 20 in leases_of(queue))
                wait_until(lambda: {lease_of(queue, task) for task in "013"} == {clock.now + 20})
            store.answer.set()
            wait_until(lambda: leases_of(queue) == {clock.now + 20})


def test_acknowledged_tasks_run_when_one_thread_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, list[str]()
    refused = threading.Event()

    def refuse_more(thread: threading.Thread) -> None:
        if thread.name == "freshq-run":
            started.append(thread.name)
            if len(started) > 1:
                if threading.current_thread().name == "freshq-worker":
                    refused.set()
                raise RuntimeError("can't start new thread")
        start(thread)

    def runner(task: Task) -> None:
        assert refused.wait(PATIENCE_SECONDS)
        ran.append(task.payload)

    queue, ran = Queue.memory(), list[int]()
    queue.put_many([{"payload": number} for number in range(3)])
    monkeypatch.setattr(threading.Thread, "start", refuse_more)
    options: Any = {"at_most_once": True, "poll_seconds": 0.01, "idle_exit_seconds": 0.05}
    Worker(queue, runner, concurrency=3, **options).run()
    assert len(ran) == 3
    assert queue.stats().success == 3


def test_an_extension_that_finds_no_thread_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    start, refused = threading.Thread.start, [True] * background.MAX_EXTENSIONS

    def refuse_extensions(thread: threading.Thread) -> None:
        if thread.name == "freshq-extend" and refused:
            refused.pop()
            raise RuntimeError("can't start new thread")
        start(thread)

    queue = Queue.memory(clock=clock, lease_seconds=20)
    with working(queue, concurrency=4):
        monkeypatch.setattr(threading.Thread, "start", refuse_extensions)
        clock.advance(15)
        wait_until(lambda: leases_of(queue) == {clock.now + 20})
    assert caplog.text.count("could not extend the lease") == background.MAX_EXTENSIONS


class Blackhole(MemoryStore):
    """A store whose calls do not return once `silent` is set, until `back` is; `fails` makes `close` fail."""

    def __init__(self) -> None:
        super().__init__()
        self.silent, self.back, self.asked = threading.Event(), threading.Event(), threading.Event()
        self.fails = False

    def paused(self, queue: str) -> bool:  # the first call of a claim
        self._hang()
        return super().paused(queue)

    def close(self) -> None:
        if self.fails:
            raise Unreachable("no answer")
        self._hang()

    def _hang(self) -> None:
        if self.silent.is_set():
            self.asked.set()
            assert self.back.wait(PATIENCE_SECONDS)


def test_the_end_of_a_worker_does_not_wait_for_a_silent_store(caplog: pytest.LogCaptureFixture) -> None:
    store = Blackhole()
    queue = Queue(store)
    queue.put("work")
    worker = Worker(queue, lambda task: task.payload, drain_seconds=0.1, poll_seconds=0.01)
    with InThread(worker) as work:
        wait_until(lambda: queue.stats().success == 1)
        store.silent.set()
        assert store.asked.wait(PATIENCE_SECONDS)
    assert work.ended().claimed == 1
    assert "could not close queue 'default' cleanly: no answer within 1 s" in caplog.text
    # A claim that is answered after the end is given back.
    store.silent.clear()
    queue.put("more")
    store.back.set()
    wait_until(lambda: queue.stats().pending == 1)


def test_the_end_of_a_worker_survives_a_store_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    store = Blackhole()
    queue = Queue(store)
    queue.put("work")

    def runner(_task: Task) -> None:
        store.fails = True

    report = Worker(queue, runner, idle_exit_seconds=0.01, poll_seconds=0.01).run()
    assert report.outcomes[Outcome.SUCCEEDED] == 1
    assert "could not close queue 'default' cleanly: no answer" in caplog.text
