"""Ways to hold and to leave tasks: at most once, and an end that gives leases back."""

import signal
import sys
import threading
from itertools import count
from types import ModuleType
from typing import Any, Self

import pytest

from freshq import Queue, Reject, Retry, Task, TaskStatus, Worker
from freshq.errors import TableMissing
from freshq.policy.retry import Backoff
from freshq.stores.memory import MemoryStore
from freshq.telemetry import Outcome
from freshq.worker import lease_loop, settle
from freshq.worker.background import LeaseRenewal
from freshq.worker.report import WorkerState
from freshq.worker.worker import load_worker, made_with
from tests.conftest import Clock
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import known
from tests.support.worker_threads import FailingStore, InThread, Quiet, wait_until, work_off


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_loop, "GIVE_BACK_SECONDS", PATIENCE_SECONDS)


class TestAtMostOnce:
    def test_a_task_is_over_when_its_run_starts(self) -> None:
        queue = Queue.memory()
        queue.put("work", task_id="a")
        seen: list[TaskStatus] = []
        report = work_off(
            queue, lambda task: seen.append(known(queue, task.task_id).status), at_most_once=True
        )
        assert seen == [TaskStatus.SUCCESS]
        assert report.outcomes[Outcome.SUCCEEDED] == 1

    @pytest.mark.parametrize(
        ("error", "text"),
        [
            (Retry("no luck"), "no luck; not run again"),
            (Reject("wrong"), "wrong"),
            (ZeroDivisionError("by 0"), "ZeroDivisionError: by 0"),
            (SystemExit(3), "SystemExit: 3"),
        ],
    )
    def test_a_run_that_fails_is_reported_and_not_repeated(self, error: BaseException, text: str) -> None:
        def runner(task: Task) -> None:
            runs.append(task.task_id)
            raise error

        queue, runs, observer = Queue.memory(), list[str](), Quiet()
        queue.put("work", task_id="a")
        report = work_off(queue, runner, at_most_once=True, observer=observer)
        assert (runs, known(queue, "a").status) == (["a"], TaskStatus.SUCCESS)
        assert observer.settlements == [("a", Outcome.FAILED, text)]
        assert (report.outcomes[Outcome.FAILED], report.unfinished) == (1, [])

    def test_a_task_that_cannot_be_acknowledged_is_not_run(self) -> None:
        def acknowledges_only_after_the_lease(task: Task) -> None:
            raise AssertionError(task.task_id)

        queue = Queue(FailingStore(changes_that_fail=1000), lease_seconds=0.05, max_attempts=100)
        queue.put("work", task_id="a")  # again if a stall outlasts its lease before the worker has it
        worker = Worker(queue, acknowledges_only_after_the_lease, at_most_once=True, poll_seconds=0.01)
        report = worker.run(until=lambda: worker.status().outcomes[Outcome.UNSETTLED] > 0)
        assert report.outcomes[Outcome.UNSETTLED] == 1

    def test_its_lease_is_not_extended(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        extended: list[str] = []
        looks, renew = list[float](), LeaseRenewal.renew

        def look(renewal: LeaseRenewal) -> None:
            renew(renewal)
            looks.append(clock.now)

        monkeypatch.setattr(LeaseRenewal, "renew", look)

        class Watched(Queue):
            def extend(self, claim: Any, **arguments: Any) -> Any:
                extended.append(claim.task.task_id)
                return super().extend(claim, **arguments)

        with Blocked(Watched.memory(clock=clock, lease_seconds=20), at_most_once=True) as work:
            work.queue.put("more", task_id="b")
            clock.advance(15)
            wait_until(lambda: looks.count(clock.now) > 2)
        assert extended == []


class Blocked(InThread):
    """Its runner blocks on one task until released; the block begins once it does."""

    def __init__(self, queue: Queue, **options: Any) -> None:
        self.queue, self.started = queue, threading.Event()
        queue.put("work", task_id="a")
        options = {"poll_seconds": 0.01, "concurrency": 1, **options}
        super().__init__(Worker(queue, self._run, **options))

    def _run(self, task: Task) -> None:
        del task
        self.started.set()
        assert self.release.wait(PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        super().__enter__()
        assert self.started.wait(PATIENCE_SECONDS)
        return self


class TestStopAtOnce:
    def test_running_tasks_are_given_back_and_the_attempt_is_not_counted(self) -> None:
        with Blocked(Queue.memory()) as work:
            work.worker.stop()
            wait_until(lambda: work.worker.status().state is WorkerState.DRAINING)
            work.worker.stop_at_once()
            report = work.ended()
            claims = work.queue.claim()
        assert (report.given_back, report.unfinished) == (["a"], [])
        assert [(claim.task.task_id, claim.task.attempts) for claim in claims] == [("a", 1)]

    def test_a_task_that_was_given_back_before_its_run_began_does_not_run(self) -> None:
        queue, ran = Queue.memory(), list[str]()
        queue.put_many([{"payload": 0} for _ in range(50)])

        def runner(task: Task) -> None:
            worker.stop_at_once()
            ran.append(task.task_id)

        worker = Worker(queue, runner, concurrency=50)
        report = worker.run()
        for thread in threading.enumerate():
            if thread.name == "freshq-run":
                thread.join(PATIENCE_SECONDS)
        assert len(ran) < 50
        stats = queue.stats()
        assert (stats.pending, stats.pending + stats.success) == (len(report.given_back), 50)

    def test_a_run_that_was_acknowledged_stays_so(self) -> None:
        with Blocked(Queue.memory(), at_most_once=True) as work:
            work.worker.stop_at_once()
            report = work.ended()
            assert known(work.queue, "a").status is TaskStatus.SUCCESS
        assert (report.given_back, report.unfinished) == ([], ["a"])

    def test_a_task_that_cannot_be_given_back_is_unfinished(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(settle, "SETTLE_BACKOFF", Backoff(0.02, 0.05))
        store = FailingStore()
        with Blocked(Queue(store)) as work:
            store.changes_that_fail = 1000
            work.worker.stop_at_once()
            report = work.ended()
        assert (report.given_back, report.unfinished) == ([], ["a"])
        assert "task a stays TAKEN until its lease expires: no answer" in caplog.text
        store.changes_that_fail = 0
        wait_until(lambda: known(work.queue, "a").status is TaskStatus.SUCCESS)  # the run is still settled


class TestStatus:
    def test_from_the_start_to_the_end(self) -> None:
        work = Blocked(Queue.memory())
        assert work.worker.status().state is WorkerState.STARTING
        with work:
            wait_until(lambda: work.worker.status().store_answers)
            status = work.worker.status()
            assert (status.state, status.running, status.claimed) == (WorkerState.WORKING, 1, 1)
            work.worker.stop()
            wait_until(lambda: work.worker.status().state is WorkerState.DRAINING)
        status = work.worker.status()
        assert (status.state, status.running) == (WorkerState.ENDED, 0)
        assert status.outcomes[Outcome.SUCCEEDED] == 1

    def test_a_store_that_fails_does_not_answer(self) -> None:
        store = FailingStore(claims_that_fail=1)
        queue = Queue(store)
        seen: list[bool] = []
        worker = Worker(queue, str, poll_seconds=0.01)
        worker.run(until=lambda: seen.append(worker.status().store_answers) or seen[-1])  # type: ignore[func-returns-value]
        assert (seen[0], seen[-1]) == (False, True)


def test_a_signal_handler_may_stop_the_worker_of_its_own_thread() -> None:
    """Even if the signal comes while that thread is inside `Wake.wait` or the handler."""
    worker = Worker(Queue.memory(), str, poll_seconds=30)
    calls: list[int] = []

    def handle(number: int, _frame: object) -> None:
        calls.append(number)
        worker.stop()
        if len(calls) < 3:
            signal.raise_signal(number)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        report = worker.run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert (len(calls), report.claimed) == (3, 0)


class TestMistakes:
    """Errors of the store that waiting does not end."""

    def test_a_table_that_was_never_there_ends_the_worker(self) -> None:
        with pytest.raises(TableMissing):
            Worker(Queue(NoTable()), str, poll_seconds=0.01).run()

    def test_a_table_that_is_away_for_a_moment_does_not(self) -> None:
        store = NoTable()
        store.missing = False
        queue = Queue(store)
        worker = Worker(queue, str, poll_seconds=0.01)
        turns = count()

        def over() -> bool:
            store.missing = 5 < next(turns) < 10
            queue.put("work") if store.refused else None
            return worker.status().outcomes[Outcome.SUCCEEDED] > 0

        worker.run(until=over)
        assert store.refused > 0


class NoTable(MemoryStore):
    """A store whose table is missing at times."""

    missing, refused = True, 0

    def paused(self, queue: str) -> bool:  # the first call of a claim
        if self.missing:
            self.refused += 1
            raise TableMissing("table 'tasks': it does not exist")
        return super().paused(queue)


def test_a_worker_of_the_application_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue.memory()

    def run(task: Task) -> Any:
        return task.payload

    application = ModuleType("orders")
    vars(application).update(worker=Worker(queue, run, concurrency=7), run=run)
    monkeypatch.setitem(sys.modules, "orders", application)
    worker = load_worker("orders:worker")
    assert worker is not None
    own, options = made_with(worker)
    assert (own, options.concurrency) == (queue, 7)
    assert load_worker("orders:run") is None
    with pytest.raises(ValueError, match="advice"):
        load_worker("no_such_module:run", "advice")
