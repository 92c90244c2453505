"""Runs that end together are settled by one call; a run that ends alone is settled immediately."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from freshq import Busy, Queue, StoreError, Task, Worker
from freshq.errors import FreshqError, Unreachable
from freshq.policy.limits import Prefetch
from freshq.policy.retry import Backoff
from freshq.stores.base import Guard
from freshq.stores.memory import MemoryStore
from freshq.telemetry import Outcome
from freshq.worker import executor, settle
from freshq.worker.settle import PendingSettlement
from tests.support.patience import PATIENCE_SECONDS
from tests.support.worker_threads import InThread, Quiet, wait_until, work_off


class Gate(MemoryStore):
    """A store whose settling calls wait while `shut`, and are noted by the ids of their tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.calls: list[list[str]] = []

    def settle_many(self, settled: Sequence[tuple[Task, str]]) -> list[Task | FreshqError]:
        self.calls.append(sorted(task.task_id for task, _token in settled))
        assert self.open.wait(PATIENCE_SECONDS)
        return super().settle_many(settled)


class Working(InThread):
    """Tasks with the payload "slow" run until `release` is set."""

    def __init__(self, queue: Queue, **options: Any) -> None:
        self.started, self.observer = list[str](), Quiet()
        super().__init__(Worker(queue, self._run, observer=self.observer, poll_seconds=0.01, **options))

    def _run(self, task: Task) -> None:
        self.started.append(task.task_id)
        if task.payload == "slow":
            assert self.release.wait(PATIENCE_SECONDS)
        if task.payload == "busy":
            raise Busy


@pytest.fixture
def store() -> Gate:
    return Gate()


@pytest.fixture
def queue(store: Gate) -> Queue:
    return Queue(store, order="fifo")


@pytest.fixture
def working(queue: Queue, store: Gate, request: pytest.FixtureRequest) -> Iterator[Working]:
    """Start a worker with as many slots as the test says."""
    with Working(queue, concurrency=request.param) as work:
        yield work
        store.open.set()


def put(queue: Queue, *task_ids: str, payload: str = "quick") -> None:
    queue.put_many([{"payload": payload, "task_id": task_id} for task_id in task_ids])


@pytest.mark.parametrize("working", [4], indirect=True)
def test_a_run_that_ends_alone_is_settled_alone_and_at_once(
    working: Working, queue: Queue, store: Gate
) -> None:
    put(queue, "slow", payload="slow")
    wait_until(lambda: working.started == ["slow"])
    for number in range(3):
        put(queue, str(number))
        wait_until(lambda number=number: store.calls[number:] == [[str(number)]])  # type: ignore[misc]
        wait_until(lambda number=number: queue.stats().success == number + 1)  # type: ignore[misc]


@pytest.mark.usefixtures("working")
@pytest.mark.parametrize("working", [8], indirect=True)
def test_what_ends_during_a_call_is_settled_by_the_next_one(
    queue: Queue, store: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "SLOW_CALL_SECONDS", PATIENCE_SECONDS)
    ended, settle = list[object](), executor.Executor.settle

    def noted(its_executor: executor.Executor, pending: PendingSettlement) -> None:
        settle(its_executor, pending)
        ended.append(pending)

    monkeypatch.setattr(executor.Executor, "settle", noted)
    store.open.clear()
    put(queue, "first")
    wait_until(lambda: store.calls == [["first"]])
    put(queue, *"abcde")
    wait_until(lambda: len(ended) == 6)
    assert store.calls == [["first"]]
    store.open.set()
    wait_until(lambda: queue.stats().success == 6)
    assert store.calls == [["first"], [*"abcde"]]


@pytest.mark.parametrize("working", [8], indirect=True)
def test_a_call_that_hangs_does_not_hold_up_the_others(working: Working, queue: Queue, store: Gate) -> None:
    store.open.clear()
    put(queue, "first")
    wait_until(lambda: store.calls == [["first"]])
    put(queue, "second")
    wait_until(lambda: store.calls == [["first"], ["second"]])
    assert "second" in working.started


@pytest.mark.parametrize("working", [4], indirect=True)
def test_a_quick_run_is_settled_while_those_claimed_with_it_still_run(
    working: Working, queue: Queue, store: Gate
) -> None:
    queue.put_many([{"payload": payload} for payload in ("quick", "slow", "slow", "slow")])
    wait_until(lambda: queue.stats().success == 1)
    wait_until(lambda: len(working.started) == 4)
    assert len(store.calls) == 1


@pytest.mark.parametrize("working", [2], indirect=True)
def test_a_run_that_succeeded_frees_its_slot_but_only_so_many_wait_to_be_settled(
    working: Working, queue: Queue, store: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "SLOW_CALL_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(Prefetch, "limit", lambda *_: 0)
    store.open.clear()
    put(queue, *"abcdefgh")
    wait_until(lambda: len(working.started) == 4)
    # Another run takes no slot until one of these is settled.
    put(queue, "late")
    assert queue.stats().taken == 4
    assert working.worker.status().running == 2
    store.open.set()
    wait_until(lambda: queue.stats().success == 9)


@pytest.mark.parametrize("working", [1], indirect=True)
def test_a_run_that_was_busy_keeps_its_slot_until_it_is_settled(
    working: Working, queue: Queue, store: Gate
) -> None:
    store.open.clear()
    put(queue, "a", payload="busy")
    wait_until(lambda: store.calls == [["a"]])
    put(queue, "b", "c")
    seen: list[tuple[list[str], int]] = []

    def settled(*_arguments: object) -> None:
        seen.append(([*working.started], queue.stats().pending))

    working.observer.settled = settled  # type: ignore[method-assign,assignment]  # called before the slot is free
    store.open.set()
    wait_until(lambda: seen != [])
    assert seen[0] == (["a"], 3)


def test_a_settlement_that_the_store_never_accepts_harms_no_other(
    queue: Queue, store: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "SETTLE_BACKOFF", Backoff(0.02, 0.05))
    replace = store.replace

    def refuse(task: Task, guard: Guard) -> Task:
        if task.task_id == "bad":
            raise StoreError("the item is too large")
        return replace(task, guard)

    store.replace = refuse  # type: ignore[method-assign]
    queue = Queue(store, lease_seconds=0.5)
    put(queue, "a", "bad", "c")
    report = Worker(queue, lambda _task: None, poll_seconds=0.01).run(
        until=lambda: queue.stats().success == 2 and bool(store.calls[3:])
    )
    assert report.outcomes[Outcome.SUCCEEDED] == 2
    assert ["bad"] in store.calls


def test_a_call_that_fails_as_a_whole_is_repeated_for_each(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle_many = queue.settle_many

    def refuse_several(settlements: Sequence[Any]) -> Any:
        if len(settlements) > 1:
            raise OverflowError("too much at a time")
        return settle_many(settlements)

    monkeypatch.setattr(queue, "settle_many", refuse_several)
    put(queue, *"abcdef")
    assert work_off(queue, lambda _task: None, concurrency=6).outcomes[Outcome.SUCCEEDED] == 6


def test_an_outage_is_not_asked_for_each_task_of_a_call(queue: Queue, store: Gate) -> None:
    tries, answer = list[int](), [Unreachable("no answer"), Unreachable("no answer")]
    settle_many = store.settle_many

    def fail(settled: Sequence[tuple[Task, str]]) -> list[Task | FreshqError]:
        tries.append(len(settled))
        if answer:
            error = answer.pop()
            return [error] * len(settled)
        return settle_many(settled)

    store.settle_many = fail  # type: ignore[method-assign]
    put(queue, *"abcdef")
    barrier = threading.Barrier(6, timeout=PATIENCE_SECONDS)
    report = work_off(queue, lambda _task: barrier.wait() and None, concurrency=6)
    assert report.outcomes[Outcome.SUCCEEDED] == 6
    assert len(tries) <= 8


def test_its_threads_end_with_the_worker(queue: Queue) -> None:
    def own() -> int:
        return sum(each.name == "freshq-run" for each in threading.enumerate())

    put(queue, *"abcdef")
    at_work = list[int]()
    barrier = threading.Barrier(6, action=lambda: at_work.append(own()), timeout=PATIENCE_SECONDS)
    work_off(queue, lambda _task: barrier.wait() and None, concurrency=6)
    assert at_work[0] >= 6
    wait_until(lambda: own() == 0)
