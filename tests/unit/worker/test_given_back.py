"""Tasks that a worker gives back when it is stopped immediately count as that, once, and as nothing else."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from freshq import Handlers, Queue, Task, TaskStatus, Worker
from freshq.telemetry import Outcome
from freshq.worker.batches import WaitingRuns
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import known
from tests.support.worker_threads import InThread, Quiet, wait_until


@pytest.mark.parametrize("is_async", [False, True])
def test_running_tasks_count_as_given_back(*, is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
    queue, handlers, started, release = Queue.memory(), Handlers(), list[str](), threading.Event()
    cleaned = list[str]()

    async def hang_later(task: Task) -> None:
        started.append(task.task_id)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)  # it cleans up after its cancellation
            cleaned.append(task.task_id)

    def hang(task: Task) -> None:
        started.append(task.task_id)
        assert release.wait(PATIENCE_SECONDS)

    handlers.on("a")(hang_later if is_async else hang)
    queue.put_many([{"payload": 1, "task_id": str(number), "kind": "a"} for number in range(5)])
    observer: Any = Quiet()
    caplog.set_level(logging.INFO)
    with InThread(Worker(queue, handlers, concurrency=5, poll_seconds=0.01, observer=observer)) as work:
        wait_until(lambda: len(started) == 5)
        work.worker.stop_at_once()
        report = work.ended()
    release.set()
    if is_async:
        wait_until(lambda: len(cleaned) == 5)
    counts = {outcome.value: number for outcome, number in report.outcomes.items() if number}
    assert (counts, sorted(report.given_back), report.unfinished) == ({"given_back": 5}, [*"01234"], [])
    assert [outcome for _task, outcome, _error in observer.settlements] == [Outcome.GIVEN_BACK] * 5
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    for name in "01234":
        assert (known(queue, name).status, known(queue, name).attempts) == (TaskStatus.PENDING, 0)


def test_a_task_that_was_cancelled_before_is_not_given_back() -> None:
    queue, handlers, started = Queue.memory(), Handlers(), threading.Event()

    @handlers.on("a")
    async def hang(_task: Task) -> None:
        started.set()
        await asyncio.Event().wait()

    queue.put(1, task_id="a", kind="a")
    with InThread(Worker(queue, handlers, poll_seconds=0.01)) as work:
        assert started.wait(PATIENCE_SECONDS)
        queue.cancel("a", force=True)
        work.worker.stop_at_once()
        report = work.ended()
    assert report.given_back == []
    assert report.outcomes[Outcome.GIVEN_BACK] == 0


class FailingOnce(WaitingRuns):
    """Fails once it has taken the first tasks."""

    error: Exception
    has_failed = False

    def add(self, runs: Any) -> Any:
        added = super().add(runs)
        if runs and not self.has_failed:
            self.has_failed = True
            raise self.error
        return added


@pytest.mark.parametrize(
    ("batch", "error"),
    [(None, ArithmeticError), (2, ArithmeticError), (9, ArithmeticError), (9, MemoryError)],
    ids=["alone", "full batch", "waiting batch", "goes on"],
)
def test_claimed_tasks_that_cannot_be_started_go_back_to_their_lines(
    monkeypatch: pytest.MonkeyPatch, batch: int | None, error: type[Exception]
) -> None:
    queue, handlers, done = Queue.memory(order="fifo"), Handlers(), list[str]()

    def run(given: Any) -> Any:
        done.extend(task.task_id for task in (given if batch else [given]))
        return [None] * len(given) if batch else None

    options: Any = {} if batch is None else {"batch": batch, "within_seconds": 0.01}
    handlers.on("a", **options)(run)
    monkeypatch.setattr(FailingOnce, "error", error("once"), raising=False)
    monkeypatch.setattr("freshq.worker.lease_loop.WaitingRuns", FailingOnce)
    queue.put_many([{"payload": 1, "task_id": name, "kind": "a"} for name in "01234"])
    observer: Any = Quiet()
    worker = Worker(
        queue, handlers, concurrency=1, poll_seconds=0.01, idle_exit_seconds=0.1, observer=observer
    )
    if error is MemoryError:  # the system lacks something for now
        worker.run()
    else:
        with pytest.raises(ArithmeticError):
            worker.run()
    assert sorted(done) == ([*"01234"] if error is MemoryError else [])
    assert Outcome.GIVEN_BACK in [outcome for _task, outcome, _error in observer.settlements]
    for name in "01234":
        expected = (TaskStatus.SUCCESS, 1) if name in done else (TaskStatus.PENDING, 0)
        assert (known(queue, name).status, known(queue, name).attempts) == expected
