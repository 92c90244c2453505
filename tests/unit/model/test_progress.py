"""Progress that a running function reports, and the request to stop that it sees."""

import asyncio
import pickle
import re
import threading
from typing import Any

import pytest

from freshq import Handlers, LeaseLost, Queue, Reject, Task, TaskStatus
from freshq.errors import RefusedError
from freshq.model.task import MAX_STEP_CHARS, Progress, checked_progress
from freshq.stores.base import Guard
from freshq.stores.memory import MemoryStore
from freshq.telemetry import Outcome
from freshq.testing import drain, make_task
from freshq.worker.run import PROGRESS_SECONDS
from tests.conftest import Clock
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import counts, known
from tests.support.refusals import refused
from tests.support.worker_threads import FailingStore, Hanging, Quiet, wait_until, work_off

FROM_0_TO_1 = "must be a number from 0 to 1"


class Counting(MemoryStore):
    """A store that counts the changes of held tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[tuple[float | None, str | None]] = []

    def replace(self, task: Task, guard: Guard) -> Task:
        if task.status is TaskStatus.TAKEN:
            self.reports.append((task.progress_fraction, task.progress_step))
        return super().replace(task, guard)


@pytest.fixture
def queue() -> Queue:
    """Return a queue with one task."""
    queue = Queue.memory()
    queue.put("work", task_id="a")
    return queue


class TestReports:
    def test_many_are_stored_as_one_every_few_seconds(self, clock: Clock) -> None:
        store = Counting()
        queue = Queue(store, clock=clock, lease_seconds=600)
        queue.put("work", task_id="a")

        def run(task: Task) -> None:
            task.progress(0, "begins")
            wait_until(lambda: store.reports == [(0, "begins")])
            for part in range(1, 1000):
                task.progress(part / 1000)
            clock.advance(PROGRESS_SECONDS - 0.1)
            threading.Event().wait(0.1)  # the renewal looks ten times in this period
            assert store.reports == [(0, "begins")]
            clock.advance(0.2)
            wait_until(lambda: store.reports == [(0, "begins"), (0.999, None)])

        assert work_off(queue, run).outcomes[Outcome.SUCCEEDED] == 1

    def test_each_renewal_carries_the_last_one(self, clock: Clock) -> None:
        store = Counting()
        queue = Queue(store, clock=clock, lease_seconds=4)
        queue.put("work", task_id="a")

        def run(task: Task) -> None:
            task.progress(0.1)
            wait_until(lambda: store.reports == [(0.1, None)])
            task.progress(0.2)
            clock.advance(2.5)
            wait_until(lambda: store.reports == [(0.1, None), (0.2, None)])

        assert work_off(queue, run).outcomes[Outcome.SUCCEEDED] == 1

    def test_a_run_without_reports_stores_nothing(self) -> None:
        store = Counting()
        queue = Queue(store)
        queue.put("work")
        work_off(queue, lambda _task: threading.Event().wait(0.05))
        assert store.reports == []

    @pytest.mark.parametrize("is_async", [False, True])
    def test_the_end_stores_the_last_one(self, is_async: bool) -> None:
        handlers, queue = Handlers(), Queue.memory()

        def load(task: Task) -> None:
            task.progress(0.5, "reading")
            raise Reject("broken file")

        async def load_async(task: Task) -> None:
            load(task)

        handlers.on("load")(load_async if is_async else load)
        queue.put(None, task_id="a", kind="load")
        work_off(queue, handlers)
        task = known(queue, "a")
        assert (task.status, task.progress_fraction, task.progress_step) == (
            TaskStatus.FAILURE,
            0.5,
            "reading",
        )

    def test_an_error_of_the_store_fails_no_run(self, clock: Clock) -> None:
        queue = Queue(FailingStore(changes_that_fail=1), clock=clock, lease_seconds=100_000)
        queue.put("work", task_id="a")

        def run(task: Task) -> None:
            task.progress(0.5)

            def stored() -> bool:
                clock.advance(1)
                return known(queue, "a").progress_fraction == 0.5

            wait_until(stored)

        assert work_off(queue, run).outcomes[Outcome.SUCCEEDED] == 1

    def test_at_most_once_keeps_none(self, queue: Queue) -> None:
        report = work_off(queue, lambda task: task.progress(0.5), at_most_once=True)
        assert report.outcomes[Outcome.SUCCEEDED] == 1
        assert known(queue, "a").progress_fraction is None

    def test_only_the_function_that_runs_a_task_reports(self, queue: Queue) -> None:
        with pytest.raises(RefusedError):
            known(queue, "a").progress(0.5)

    def test_a_wrong_report_fails_the_attempt(self) -> None:
        queue = Queue.memory(max_attempts=1)
        queue.put("work", task_id="a")
        work_off(queue, lambda task: task.progress(50))
        assert "progress: must be a number from 0 to 1, got 50" in (known(queue, "a").error or "")

    def test_a_task_that_runs_can_be_pickled(self) -> None:
        task = make_task("work")
        assert pickle.loads(pickle.dumps(task)) == task  # noqa: S301 - its own


class TestCancelled:
    def test_a_thread_sees_it_and_the_fate_is_cancelled(self, clock: Clock) -> None:
        queue, observer = Queue.memory(clock=clock, lease_seconds=20), Quiet()
        queue.put("work", task_id="a")
        late: list[str] = []

        def run(task: Task) -> str:
            assert not task.cancelled
            queue.cancel("a", force=True)
            clock.advance(15)
            wait_until(lambda: task.cancelled)
            with pytest.raises(LeaseLost):
                task.progress(0.9)
            late.append(task.task_id)
            return "too late"

        report = work_off(queue, run, observer=observer)
        assert (late, report.outcomes[Outcome.CANCELLED], report.outcomes[Outcome.LEASE_LOST]) == (
            ["a"],
            1,
            0,
        )
        assert counts(queue.stats()) == {"cancelled": 1}
        assert known(queue, "a").result is None

    def test_a_report_shows_it_long_before_the_renewal(self) -> None:
        queue = Queue.memory(lease_seconds=3600)
        queue.put("work", task_id="a")

        def run(task: Task) -> None:
            queue.cancel("a", force=True)
            task.progress(0.5)
            wait_until(lambda: task.cancelled)

        assert work_off(queue, run).outcomes[Outcome.CANCELLED] == 1

    def test_the_lost_lease_is_not_asked_for_again(self, clock: Clock) -> None:
        store = Counting()
        queue = Queue(store, clock=clock, lease_seconds=20)
        queue.put("work", task_id="a")

        def run(task: Task) -> None:
            queue.pause()
            queue.redrive(["a"], as_new=True, force=True)
            clock.advance(15)
            wait_until(lambda: task.cancelled)
            tries = len(store.reports)
            threading.Event().wait(0.1)
            assert len(store.reports) == tries

        assert work_off(queue, run).outcomes[Outcome.LEASE_LOST] == 1

    def test_a_coroutine_is_cancelled_and_the_downstream_is_not_blamed(
        self, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = Queue.memory(clock=clock, lease_seconds=20)
        handlers, observer = Handlers(), Quiet()

        @handlers.on("long")
        async def long(task: Task) -> None:
            queue.cancel(task.task_id, force=True)
            clock.advance(15)
            await asyncio.sleep(PATIENCE_SECONDS)

        queue.put(None, task_id="a", kind="long")
        report = work_off(queue, handlers, observer=observer)
        assert report.outcomes[Outcome.CANCELLED] == 1
        assert observer.settlements == [
            ("a", Outcome.CANCELLED, "the run was cancelled: its task is CANCELLED now")
        ]
        assert "Traceback" not in caplog.text

    def test_a_run_past_its_limit_sees_it(self, clock: Clock) -> None:
        queue = Queue.memory(clock=clock, lease_seconds=20)
        queue.put("hangs", task_id="a")
        tasks: list[Task] = []

        class Noting(Hanging):
            def _run(self, task: Task) -> str:
                tasks.append(task)
                return super()._run(task)

        with Noting(queue, clock) as work:
            work.overrun("a")
            assert tasks[0].cancelled

    def test_a_coroutine_past_the_worker_s_limit_is_cancelled_and_tried_again(self) -> None:
        handlers, queue = Handlers(), Queue.memory(max_attempts=1)

        @handlers.on("long")
        async def long(_task: Task) -> None:
            await asyncio.sleep(PATIENCE_SECONDS)

        queue.put(None, task_id="a", kind="long")
        report = work_off(queue, handlers, max_run_seconds=0.05)
        assert report.overran == ["a"]
        wait_until(lambda: counts(queue.stats()) == {"failure": 1})
        assert known(queue, "a").error == "the run was cancelled: it took longer than 0.05 s"

    def test_elsewhere_it_is_the_status(self, queue: Queue) -> None:
        assert not known(queue, "a").cancelled
        queue.cancel("a")
        assert known(queue, "a").cancelled


class TestRefused:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"progress": 40}, f"progress: {FROM_0_TO_1}, got 40; divide percent by 100"),
            ({"progress": -0.1}, f"progress: {FROM_0_TO_1}, got -0.1; divide percent by 100"),
            ({"progress": float("nan")}, f"progress: {FROM_0_TO_1}, got nan; divide percent by 100"),
            ({"progress": True}, f"progress: {FROM_0_TO_1}, got True; divide percent by 100"),
            ({"progress": "half"}, f"progress: {FROM_0_TO_1}, got 'half'; divide percent by 100"),
            ({"progress": 0.5, "step": 3}, "step: must be a string or None, got int"),
            ({"step": "loading"}, "step: only with progress, a number from 0 to 1"),
        ],
    )
    def test_wrong_arguments_change_nothing(
        self, arguments: dict[str, Any], message: str, queue: Queue
    ) -> None:
        (claim,) = queue.claim()
        before = known(queue, "a")
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            queue.extend(claim, **arguments)
        assert known(queue, "a") == before


def test_a_report_is_kept_as_every_store_accepts_it() -> None:
    assert (checked_progress(0), checked_progress(1)) == (Progress(0.0), Progress(1.0))
    assert checked_progress(1 / 3).fraction == 0.333333
    longest = "x" * MAX_STEP_CHARS
    assert checked_progress(1, longest).step == longest
    assert checked_progress(1, longest + "x").step == longest[1:] + "…"
    assert checked_progress(1, "a\0b\ud800").step == "a\\0b?"


class TestInTests:
    def test_a_made_task_shows_what_was_reported(self) -> None:
        task = make_task("work")
        task.progress(0.4, "loading")
        assert (task.progress_fraction, task.progress_step, task.cancelled) == (0.4, "loading", False)
        assert make_task("work", cancelled=True).cancelled
        with refused("progress"):
            task.progress(2)

    def test_a_drain_keeps_the_last_report(self, queue: Queue) -> None:
        (fate,) = drain(queue, lambda task: task.progress(0.75, "sending"))
        assert (fate.task.progress_fraction, fate.task.progress_step) == (0.75, "sending")
