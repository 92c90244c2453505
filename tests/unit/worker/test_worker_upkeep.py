"""A worker does its queue's upkeep in the background, independent of its claims."""

import threading
from collections import Counter

import pytest

from freshq import Queue, Task, TaskStatus, Worker
from freshq.policy.retry import Backoff
from freshq.queue.core import core_of
from freshq.queue.upkeep import LARGE_PORTION
from freshq.stores.memory import MemoryStore
from freshq.testing import FaultyStore
from freshq.worker import background as worker_upkeep
from freshq.worker import settle
from freshq.worker.background import BackgroundUpkeep
from freshq.worker.transaction_loop import LONG_TRANSACTION_SECONDS, TransactionLoop, warn_if_long
from tests.conftest import Clock
from tests.support.patience import PATIENCE_SECONDS
from tests.support.worker_threads import Outage, wait_until


def test_what_is_due_is_brought_in_while_every_slot_is_busy() -> None:
    clock = Clock()
    queue = Queue(MemoryStore(), clock=clock, lease_seconds=3600)
    queue.put("first", task_id="first")
    queue.put("delayed", task_id="delayed", delay_seconds=10)
    running, finish = threading.Event(), threading.Event()

    def runner(_task: Task) -> None:
        running.set()
        assert finish.wait(PATIENCE_SECONDS)

    worker = Worker(queue, runner, concurrency=1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert running.wait(PATIENCE_SECONDS)
        clock.advance(10)
        wait_until(lambda: queue.stats().delayed == 0)
        assert core_of(queue).store.get("delayed").status is TaskStatus.PENDING  # type: ignore[union-attr]
    finally:
        worker.stop()
        finish.set()
        thread.join(PATIENCE_SECONDS)


def test_an_outage_is_logged_once_and_outlived(caplog: pytest.LogCaptureFixture) -> None:
    clock, store = Clock(), FaultyStore()
    queue = store.queue(clock=clock)
    queue.put("delayed", delay_seconds=10)
    clock.advance(10)
    upkeep = BackgroundUpkeep(queue, is_held_back=lambda: False)
    with store.down():
        assert [upkeep.portion(), upkeep.portion()] == [False, False]
    assert len([record for record in caplog.records if "waits for its store" in record.message]) == 1
    assert not upkeep.portion()
    assert queue.stats().pending == 1


def test_portions_follow_at_once_while_more_is_due() -> None:
    clock = Clock()
    queue = Queue(MemoryStore(), clock=clock)
    queue.put_many([{"payload": n, "delay_seconds": 10} for n in range(LARGE_PORTION + 1)])
    clock.advance(10)
    upkeep = BackgroundUpkeep(queue, is_held_back=lambda: False)

    assert [upkeep.portion(), upkeep.portion()] == [True, False]
    assert queue.stats().pending == LARGE_PORTION + 1


def test_portions_follow_at_once_while_more_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    stale = [LARGE_PORTION, 1]
    monkeypatch.setattr(store, "tidy", lambda _queue, _now, _limit: stale.pop(0))
    upkeep = BackgroundUpkeep(Queue(store), is_held_back=lambda: False)

    assert [upkeep.portion(), upkeep.portion()] == [True, False]


def test_an_error_in_the_thread_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(MemoryStore())

    def broken() -> int:
        raise RuntimeError("broken upkeep")

    monkeypatch.setattr(queue.admin, "upkeep", broken)
    monkeypatch.setattr(worker_upkeep, "REST_SECONDS", 0.0)
    with pytest.raises(RuntimeError):
        Worker(queue, lambda task: task.payload, poll_seconds=0.05).run()


def test_tasks_that_are_done_here_are_not_recovered_before_they_are_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, store, starts = Clock(), Outage(), Counter[str]()
    queue = Queue(store, clock=clock, lease_seconds=20)
    queue.put("work", task_id="a")
    portion, portions, between = BackgroundUpkeep.portion, list[bool](), threading.Lock()

    def counted(upkeep: BackgroundUpkeep) -> bool:
        with between:
            portions.append(portion(upkeep))
            return portions[-1]

    # After the outage the upkeep is the first to ask the store.
    monkeypatch.setattr(worker_upkeep, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(settle, "SETTLE_BACKOFF", Backoff(0.5, 0.5))
    monkeypatch.setattr(BackgroundUpkeep, "portion", counted)

    def runner(task: Task) -> None:
        starts[task.task_id] += 1
        if starts.total() == 1:
            store.down.set()

    worker = Worker(queue, runner, poll_seconds=1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        wait_until(lambda: store.refused["replace"] >= 1)
        with between:
            clock.advance(30)
            seen = len(portions)
        wait_until(lambda: len(portions) >= seen + 3)
        store.down.clear()
        wait_until(lambda: queue.stats().success == 1)
    finally:
        store.down.clear()
        worker.stop()
        thread.join(PATIENCE_SECONDS)
    assert starts == {"a": 1}


def test_a_long_transaction_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue.memory()
    task = core_of(queue).store.get(queue.put("work", task_id="long").task_id)
    assert task is not None
    assert not warn_if_long(task, LONG_TRANSACTION_SECONDS - 1)
    assert not caplog.records
    assert warn_if_long(task, LONG_TRANSACTION_SECONDS)
    assert "task long: its transaction has been open for 60 s" in caplog.text


def test_a_loop_whose_tasks_are_settled_at_once_never_holds_upkeep_back() -> None:
    loop = TransactionLoop.__new__(TransactionLoop)
    assert not loop._settles_late()


def test_a_task_starts_before_the_store_is_asked_when_the_next_one_is_due() -> None:
    began, asked = threading.Event(), list[bool]()

    class _Store(MemoryStore):
        def next_due(self, queue: str, now: float) -> float | None:
            asked.append(began.wait(PATIENCE_SECONDS))
            return super().next_due(queue, now)

    queue = Queue(_Store())
    queue.put("work")
    worker = Worker(queue, lambda _task: began.set(), concurrency=2)
    worker.run(until=lambda: bool(asked))
    assert asked[0]
    assert began.is_set()
