"""A worker whose tasks are held in database transactions."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from freshq import Busy, Queue, Reject, Retry, Task, TaskStatus, Worker
from freshq.errors import Unreachable
from freshq.queue.core import core_of
from freshq.stores.sql.transactions import SqlTransactions
from freshq.telemetry import Outcome
from freshq.worker import background
from freshq.worker.limits import StartLimits
from freshq.worker.loop import ClaimBackoff
from freshq.worker.report import WorkerState
from tests.conftest import StoreUnderTest
from tests.sql.conftest import write, written
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import known, total
from tests.support.worker_threads import Quiet, wait_until, work_off


def work(queue: Queue, runner: Callable[[Task, sa.Connection], Any], **options: Any) -> Any:
    return work_off(queue, runner, transaction=True, **options)  # type: ignore[arg-type]


def test_every_task_and_its_effect_commit_together(queue: Queue, effects: sa.Engine) -> None:
    def runner(task: Task, connection: sa.Connection) -> str:
        write(connection, task.task_id)
        return "written"

    queue.put_many([{"payload": number, "task_id": f"task-{number}"} for number in range(20)])
    observer = Quiet()
    report = work(queue, runner, concurrency=4, observer=observer)
    assert sorted(written(effects)) == sorted(f"task-{number}" for number in range(20))
    assert (report.claimed, report.outcomes[Outcome.SUCCEEDED], report.idle) == (20, 20, True)
    assert queue.stats().success == len(observer.settlements) == 20
    task = known(queue, "task-7")
    assert task.result == "written"


def test_a_task_that_cannot_be_settled_does_not_run_again_at_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete, back_off = SqlTransactions._store_completed, ClaimBackoff.claim_failed
    events: list[str] = []

    def completed(*arguments: Any) -> Task:
        if "failed" in events:
            return complete(*arguments)
        events.append("failed")
        raise Unreachable("no space is left")

    def claim_failed(backoff: ClaimBackoff) -> None:
        events.append("backs off")
        back_off(backoff)

    monkeypatch.setattr(SqlTransactions, "_store_completed", completed)
    monkeypatch.setattr(ClaimBackoff, "claim_failed", claim_failed)
    queue.put("work", task_id="a")
    report = work(queue, lambda _task, _connection: events.append("runs"), concurrency=1)
    assert events == ["runs", "failed", "backs off", "runs"]
    assert (report.outcomes[Outcome.UNSETTLED], known(queue, "a").attempts) == (1, 1)


@pytest.mark.parametrize("event", ["claimed", "settled"])
def test_an_observer_that_fails_ends_the_worker_and_no_run(queue: Queue, event: str) -> None:
    def fail(*_arguments: object) -> None:
        raise Unreachable("where the observer writes to")  # no outage of the queue

    observer = Quiet()
    setattr(observer, event, fail)
    queue.put("work", task_id="a")
    with pytest.raises(Unreachable):
        work(queue, lambda _task, _connection: None, observer=observer)
    task = known(queue, "a")
    assert (task.status, task.attempts) == (TaskStatus.SUCCESS, 1)


@pytest.mark.parametrize(
    ("error", "outcome", "status", "text"),
    [
        (ValueError("bad"), Outcome.RETRIED, TaskStatus.PENDING, "ValueError: bad"),
        (SystemExit(3), Outcome.RETRIED, TaskStatus.PENDING, "RunnerExit: SystemExit: 3"),
        (ValueError("nul \0"), Outcome.RETRIED, TaskStatus.PENDING, "ValueError: nul \\0"),
        (Retry("later", delay_seconds=500), Outcome.RETRIED, TaskStatus.PENDING, "later"),
        (Reject("never"), Outcome.FAILED, TaskStatus.FAILURE, "never"),
    ],
)
def test_what_a_runner_raises_undoes_its_effect_and_ends_the_attempt(
    queue: Queue, effects: sa.Engine, error: BaseException, outcome: Outcome, status: TaskStatus, text: str
) -> None:
    def runner(task: Task, connection: sa.Connection) -> None:
        write(connection, task.task_id)
        raise error

    queue.put("work", task_id="a")
    observer = Quiet()
    worker = Worker(queue, runner, transaction=True, poll_seconds=0.01, observer=observer)
    report = worker.run(until=lambda: bool(observer.settlements))
    task = known(queue, "a")
    assert (task.status, task.error, written(effects)) == (status, text, [])
    kept = task.attempt_log[0].traceback
    assert kept is None if isinstance(error, Retry | Reject) else "in runner" in str(kept)
    assert report.outcomes[outcome] >= 1
    assert observer.settlements[0] == ("a", outcome, text)


def test_a_task_whose_child_is_refused_for_lack_of_time_is_shed_as_under_a_lease(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    def runner(task: Task, connection: sa.Connection) -> None:
        queue.put(2, parent=task, delay_seconds=600, connection=connection)

    queue.put(1, task_id="a", max_age_seconds=500)
    observer = Quiet()
    report = work(queue, runner, observer=observer)
    task = known(queue, "a")
    assert (task.status, task.not_before, task.attempts) == (TaskStatus.PENDING, task.deadline, 0)
    assert (report.outcomes[Outcome.SHED], sum(report.outcomes.values()), caplog.records) == (1, 1, [])
    ((_task_id, _outcome, text),) = observer.settlements
    assert str(text).startswith("task ")


def test_busy_is_released_and_tried_again(queue: Queue) -> None:
    runs = Counter[str]()

    def runner(task: Task, connection: sa.Connection) -> int:
        del connection
        runs[task.task_id] += 1
        if runs[task.task_id] == 1:
            raise Busy
        return task.attempts

    queue.put("work", task_id="a")
    report = work(queue, runner, concurrency=1)
    task = known(queue, "a")
    assert (task.status, task.result) == (TaskStatus.SUCCESS, 1)
    assert report.outcomes[Outcome.RELEASED] == 1


def test_the_end_waits_for_what_runs_and_starts_no_more(queue: Queue) -> None:
    started, release = threading.Event(), threading.Event()

    def runner(task: Task, connection: sa.Connection) -> None:
        del task, connection
        started.set()
        assert release.wait(PATIENCE_SECONDS)

    queue.put_many([{"payload": number} for number in range(3)])
    reports: list[Any] = []
    worker = Worker(queue, runner, transaction=True, concurrency=1, poll_seconds=0.01)
    thread = threading.Thread(target=lambda: reports.append(worker.run()))
    thread.start()
    assert started.wait(PATIENCE_SECONDS)
    worker.stop()
    wait_until(lambda: worker.status().state is WorkerState.DRAINING)
    assert worker.status().running == 1
    release.set()
    thread.join(PATIENCE_SECONDS)
    assert (reports[0].claimed, reports[0].outcomes[Outcome.SUCCEEDED]) == (1, 1)
    assert queue.stats().pending == 2


def test_a_task_found_after_the_end_was_asked_for_is_given_back(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is no push-back: it must not lower a limit that all workers share."""
    signals: list[bool] = []
    monkeypatch.setattr(StartLimits, "ended", lambda _self, downstream_ok: signals.append(downstream_ok))
    queue.put("work", task_id="a")
    hold = queue.transaction
    worker = Worker(queue, lambda task, connection: (task, connection), transaction=True, concurrency=1)

    @contextmanager
    def found_late() -> Iterator[Any]:
        with hold() as held:
            worker.stop()
            wait_until(lambda: worker.status().state is WorkerState.DRAINING)
            yield held

    queue.transaction = found_late  # type: ignore[method-assign]
    report = worker.run()
    assert (report.outcomes[Outcome.GIVEN_BACK], report.unfinished) == (1, [])
    task = known(queue, "a")
    assert (task.status, task.attempts, signals) == (TaskStatus.PENDING, 0, [])


def test_an_outage_while_it_looks_is_waited_through(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    hold, failures = queue.transaction, [Unreachable("no answer")]

    def fails_once() -> Any:
        if failures:
            raise failures.pop()
        return hold()

    queue.put("work", task_id="a")
    monkeypatch.setattr(queue, "transaction", fails_once)
    report = work(queue, lambda task, connection: (task.payload, connection.dialect.name), concurrency=1)
    assert report.outcomes[Outcome.SUCCEEDED] == 1


def test_a_commit_that_fails_leaves_the_task_as_it_was(
    queue: Queue, effects: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions = core_of(queue).store.transactions
    complete, failures = transactions._store_completed, [Unreachable("no answer")]  # type: ignore[union-attr]

    def fails_once(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return complete(*arguments)

    monkeypatch.setattr(transactions, "_store_completed", fails_once)
    queue.put("work", task_id="a")
    report = work(queue, lambda task, connection: write(connection, task.task_id), concurrency=1)
    assert (report.outcomes[Outcome.UNSETTLED], report.outcomes[Outcome.SUCCEEDED]) == (1, 1)
    assert written(effects) == ["a"]


def test_it_does_the_upkeep_of_its_queue(store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "PAUSE_SECONDS", 0.01)
    queue = store.queue(retention_seconds=10)
    queue.put("work")
    assert work(queue, lambda task, connection: (task.payload, connection.dialect.name)).claimed == 1
    store.clock.advance(11)
    worker = Worker(queue, lambda task, connection: (task, connection), transaction=True, poll_seconds=0.01)
    worker.run(until=lambda: total(queue) == 0)
    assert total(queue) == 0
