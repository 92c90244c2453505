"""Coroutines of handlers: many at a time with few threads, and a worker inside an application's loop."""

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from freshq import Busy, Handlers, Queue, Reject, Retry, Task, TaskStatus, Worker
from freshq.errors import TableMissing, Unreachable
from freshq.telemetry import Outcome, RunReport
from freshq.testing import FaultyStore
from freshq.worker import lease_loop, serving
from freshq.worker.report import WorkerState
from tests.conftest import START, Clock
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import counts, known
from tests.support.refusals import refused
from tests.support.worker_threads import lease_of

MANY = 500
# For claims, renewals, upkeep and settlements, whatever the number of coroutines.
MOST_THREADS = 30


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


def settled(worker: Worker) -> int:
    """Return how many runs ended."""
    return sum(worker.status().outcomes.values())


def quick(queue: Queue, handlers: Handlers, **options: object) -> Worker:
    """Return a worker that looks for tasks often."""
    return Worker(queue, handlers, **{"poll_seconds": 0.01, "concurrency": 10, **options})  # type: ignore[arg-type]  # any options


def worked_off(queue: Queue, handlers: Handlers, **options: object) -> RunReport:
    """Run a worker until the queue is empty, its coroutines on a loop of their own."""
    return quick(queue, handlers, idle_exit_seconds=0.05, **options).run()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_loop, "GIVE_BACK_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(serving, "START_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


class TestManyCoroutines:
    def test_they_wait_at_the_same_time_with_few_threads(self, handlers: Handlers) -> None:
        everybody = asyncio.Event()
        waiting: list[str] = []
        threads: list[int] = []
        before = threading.active_count()

        @handlers.on("wait")
        async def wait(task: Task) -> int:
            waiting.append(task.task_id)
            threads.append(threading.active_count() - before)
            if len(waiting) == MANY:
                everybody.set()
            await everybody.wait()
            return len(waiting)

        queue = Queue.memory()
        queue.put_many([{"payload": None, "kind": "wait"} for _ in range(MANY)])
        report = worked_off(queue, handlers, concurrency=MANY)
        assert report.outcomes[Outcome.SUCCEEDED] == MANY
        assert max(threads) <= MOST_THREADS
        assert {task.result for task in queue.list(limit=MANY).tasks} == {MANY}

    def test_their_leases_are_extended(self, handlers: Handlers, clock: Clock) -> None:
        started: list[str] = []

        @handlers.on("long")
        async def long(task: Task) -> None:
            started.append(task.task_id)
            for times in (1, 2):
                if len(started) == 20 * times:
                    clock.advance(15)
                await until(lambda times=times: lease_of(queue, task.task_id) == START + 20 + 15 * times)  # type: ignore[misc]
                started.append(task.task_id)

        queue = Queue.memory(clock=clock, lease_seconds=20)
        queue.put_many([{"payload": None, "kind": "long"} for _ in range(20)])
        report = worked_off(queue, handlers, concurrency=20)
        assert report.outcomes[Outcome.SUCCEEDED] == 20
        assert {task.attempts for task in queue.list().tasks} == {1}

    def test_one_whose_task_is_cancelled_stops_at_the_next_renewal(
        self, handlers: Handlers, clock: Clock
    ) -> None:
        queue = Queue.memory(clock=clock, lease_seconds=20)
        stopped: list[str] = []

        @handlers.on("long")
        async def long(task: Task) -> None:
            queue.cancel(task.task_id, force=True)
            clock.advance(15)
            try:
                await asyncio.sleep(PATIENCE_SECONDS)
            except asyncio.CancelledError:
                stopped.append(task.task_id)
                raise

        queue.put(None, task_id="a", kind="long")
        report = worked_off(queue, handlers)
        assert (stopped, report.outcomes[Outcome.CANCELLED]) == (["a"], 1)
        assert known(queue, "a").status is TaskStatus.CANCELLED

    def test_no_more_run_than_the_worker_may_run(self, handlers: Handlers) -> None:
        running: set[str] = set()
        most: list[int] = []
        four_at_once = asyncio.Event()

        @handlers.on("wait")
        async def wait(task: Task) -> None:
            running.add(task.task_id)
            most.append(len(running))
            if len(running) == 4:
                four_at_once.set()
            await four_at_once.wait()
            await asyncio.sleep(0.01)
            running.remove(task.task_id)

        queue = Queue.memory()
        queue.put_many([{"payload": None, "kind": "wait"} for _ in range(20)])
        worked_off(queue, handlers, concurrency=4)
        assert max(most) == 4

    @pytest.mark.parametrize(
        ("raised", "outcome", "status", "attempts"),
        [
            (Retry("later", delay_seconds=60), Outcome.RETRIED, TaskStatus.PENDING, 1),
            (Reject("never"), Outcome.FAILED, TaskStatus.FAILURE, 1),
            (KeyError("broken"), Outcome.RETRIED, TaskStatus.PENDING, 1),
            (Busy(), Outcome.RELEASED, TaskStatus.PENDING, 0),
            (asyncio.CancelledError(), Outcome.RETRIED, TaskStatus.PENDING, 1),
        ],
    )
    def test_what_they_raise_counts_as_in_a_thread(
        self, handlers: Handlers, raised: BaseException, outcome: Outcome, status: TaskStatus, attempts: int
    ) -> None:
        @handlers.on("fails")
        async def fails(_task: Task) -> None:
            raise raised

        queue = Queue.memory()
        queue.put(None, task_id="a", kind="fails")
        worker = quick(queue, handlers, concurrency=1)
        worker.run(until=lambda: settled(worker) == 1)
        assert worker.status().outcomes[outcome] == 1
        assert (known(queue, "a").status, known(queue, "a").attempts) == (status, attempts)

    def test_at_most_once_they_run_when_their_task_is_over(self, handlers: Handlers) -> None:
        queue = Queue.memory()
        seen: list[TaskStatus] = []

        @handlers.on("look")
        async def look(task: Task) -> None:
            await asyncio.sleep(0)
            seen.append(known(queue, task.task_id).status)

        queue.put(None, task_id="a", kind="look")
        report = worked_off(queue, handlers, at_most_once=True)
        assert (seen, report.outcomes[Outcome.SUCCEEDED]) == ([TaskStatus.SUCCESS], 1)

    def test_a_loop_that_is_closed_fails_the_attempt(self, handlers: Handlers) -> None:
        @handlers.on("any")
        async def anything(_task: Task) -> None:
            """Do nothing."""

        loop = asyncio.new_event_loop()
        loop.close()
        queue = Queue.memory()
        queue.put(None, kind="any")
        (claim,) = queue.claim()
        answer = handlers.start(claim.task, loop)
        assert answer is not None
        with pytest.raises(RuntimeError):
            answer.result(PATIENCE_SECONDS)


class TestServing:
    def test_coroutines_run_on_the_loop_of_the_application_and_functions_do_not_hold_it(
        self, handlers: Handlers
    ) -> None:
        loops: list[object] = []
        threads: list[object] = []

        @handlers.on("async")
        async def on_loop(_task: Task) -> None:
            loops.append(asyncio.get_running_loop())

        @handlers.on("sync")
        def in_thread(_task: Task) -> None:
            threads.append(threading.current_thread())

        async def application() -> None:
            queue = Queue.memory()
            async with quick(queue, handlers).serving() as worker:
                queue.put(None, kind="async")
                queue.put(None, kind="sync")
                await until(lambda: settled(worker) == 2)
                assert worker.status().state is WorkerState.WORKING
            assert worker.status().state is WorkerState.ENDED
            assert loops == [asyncio.get_running_loop()]
            assert threads != [threading.main_thread()]

        asyncio.run(application())
        assert len(threads) == 1

    def test_the_end_of_the_block_waits_for_what_runs(self, handlers: Handlers) -> None:
        started, may_end = asyncio.Event(), asyncio.Event()

        @handlers.on("wait")
        async def wait(_task: Task) -> str:
            started.set()
            await may_end.wait()
            return "done"

        async def application() -> None:
            queue = Queue.memory()
            queue.put(None, task_id="a", kind="wait")
            worker = quick(queue, handlers, concurrency=1)

            async def end_once_it_drains() -> None:
                await until(lambda: worker.status().state is WorkerState.DRAINING)
                may_end.set()

            async with worker.serving(drain_seconds=PATIENCE_SECONDS):
                await started.wait()
                queue.put(None, task_id="later", kind="wait")
                ending = asyncio.create_task(end_once_it_drains())
            await ending
            assert known(queue, "a").result == "done"
            assert known(queue, "later").status is TaskStatus.PENDING

        asyncio.run(application())

    def test_what_takes_too_long_is_given_back_and_cancelled(self, handlers: Handlers) -> None:
        started, cancelled = asyncio.Event(), asyncio.Event()

        @handlers.on("hang")
        async def hang(_task: Task) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        async def application() -> None:
            queue = Queue.memory()
            queue.put(None, task_id="a", kind="hang")
            async with quick(queue, handlers, concurrency=1).serving(drain_seconds=0.05):
                await started.wait()
            assert (known(queue, "a").status, known(queue, "a").attempts) == (TaskStatus.PENDING, 0)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await cancelled.wait()

        asyncio.run(application())

    def test_a_second_cancellation_does_not_wait(self, handlers: Handlers) -> None:
        started, inside, stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()
        queue = Queue.memory()

        @handlers.on("hang")
        async def hang(_task: Task) -> None:
            started.set()
            await asyncio.Event().wait()

        async def application() -> None:
            async with worker.serving():
                inside.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    stopping.set()

        worker = quick(queue, handlers)

        async def program() -> None:
            queue.put(None, task_id="a", kind="hang")
            task = asyncio.create_task(application())
            await started.wait()
            await inside.wait()
            task.cancel()
            await stopping.wait()
            await until(lambda: worker.status().state is WorkerState.DRAINING)
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(program())
        assert counts(queue.stats()) == {"pending": 1}

    def test_an_error_of_the_worker_is_logged_at_once_and_raised_at_the_end(
        self, handlers: Handlers, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = FaultyStore()
        reached: list[str] = []

        async def application() -> None:
            async with quick(store.queue(), handlers, give_up_seconds=0).serving() as worker:
                with store.down():
                    await until(lambda: "the worker ended" in caplog.text)
                assert worker.status().state is WorkerState.ENDED
                reached.append("the end of the block")

        with caplog.at_level(logging.ERROR), pytest.raises(Unreachable):
            asyncio.run(application())
        assert reached

    def test_a_missing_table_is_an_error_before_the_block(self, handlers: Handlers, tmp_path: Path) -> None:
        async def application() -> None:
            async with quick(Queue.sql(f"sqlite:///{tmp_path}/tasks.db"), handlers).serving():
                raise AssertionError("it began")

        with pytest.raises(TableMissing):
            asyncio.run(application())

    def test_in_an_outage_the_block_begins(self, handlers: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(serving, "START_SECONDS", 0.05)
        store = FaultyStore()

        @handlers.on("late")
        async def late(_task: Task) -> None:
            """Do nothing."""

        async def application() -> None:
            queue = store.queue()
            queue.put(None, kind="late")
            with store.down():
                async with quick(queue, handlers).serving() as worker:
                    assert not worker.status().store_answers

        asyncio.run(application())

    def test_an_error_of_the_block_is_the_one_that_is_raised(self, handlers: Handlers) -> None:
        async def application() -> None:
            async with quick(Queue.memory(), handlers).serving():
                raise KeyError("the application")

        with pytest.raises(KeyError):
            asyncio.run(application())

    def test_it_is_raised_also_if_the_worker_failed(
        self, handlers: Handlers, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = FaultyStore()

        async def application() -> None:
            async with quick(store.queue(), handlers, give_up_seconds=0).serving():
                with store.down():
                    await until(lambda: "the worker ended" in caplog.text)
                raise KeyError("the application")

        with pytest.raises(KeyError):
            asyncio.run(application())

    def test_a_wrong_time_starts_nothing(self, handlers: Handlers) -> None:
        async def application() -> None:
            async with quick(Queue.memory(), handlers).serving(drain_seconds=-1):
                raise AssertionError("it started")

        with refused("drain_seconds"):
            asyncio.run(application())
