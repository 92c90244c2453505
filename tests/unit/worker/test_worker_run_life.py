"""The life of a run: a done task is never given back, run again or cancelled."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from freshq import Claim, Handlers, LeaseLost, Queue, Reject, Retry, Task, TaskStatus, Worker
from freshq.errors import FreshqError
from freshq.model import JsonCodec
from freshq.policy.retry import Backoff
from freshq.stores.memory import MemoryStore
from freshq.telemetry import Outcome
from freshq.worker import lease_loop, settle
from freshq.worker.report import WorkerState
from freshq.worker.run import Phase, TaskRun, TaskRuns
from tests.conftest import Clock
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import known
from tests.support.worker_threads import FailingStore, Hanging, InThread, Quiet, lease_of, renew, wait_until


class LateSettlements(MemoryStore):
    """A store that keeps the first call that settles a task named "done" waiting until it is `open`."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.open = threading.Event(), threading.Event()

    def settle_many(self, settled: Sequence[tuple[Task, str]]) -> list[Task | FreshqError]:
        if not self.waits.is_set() and any(task.task_id == "done" for task, _token in settled):
            self.waits.set()
            assert self.open.wait(PATIENCE_SECONDS)
        return super().settle_many(settled)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_loop, "GIVE_BACK_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def store() -> Iterator[LateSettlements]:
    store = LateSettlements()
    yield store
    store.open.set()


class Ending(InThread):
    """For the task "done" the runner raises the test's exception; other tasks run until released."""

    def __init__(self, queue: Queue, raised: Exception | None = None, **options: Any) -> None:
        self.queue, self.raised, self.observer = queue, raised, Quiet()
        options = {"poll_seconds": 0.01, "concurrency": 2, **options}
        super().__init__(Worker(queue, self._run, observer=self.observer, **options))

    def _run(self, task: Task) -> None:
        if task.task_id == "done":
            if self.raised is not None:
                raise self.raised
        else:
            assert self.release.wait(PATIENCE_SECONDS)


class TestStopAtOnce:
    @pytest.mark.parametrize(
        ("raised", "outcome", "status"),
        [
            (None, Outcome.SUCCEEDED, TaskStatus.SUCCESS),
            (Reject("wrong"), Outcome.FAILED, TaskStatus.FAILURE),
            (Retry("later", delay_seconds=60), Outcome.RETRIED, TaskStatus.PENDING),
        ],
    )
    def test_a_run_that_is_done_is_settled_and_not_given_back(
        self, store: LateSettlements, raised: Exception | None, outcome: Outcome, status: TaskStatus
    ) -> None:
        queue = Queue(store)
        queue.put_many([{"payload": 0, "task_id": name} for name in ("done", "runs")])
        with Ending(queue, raised) as work:
            assert store.waits.wait(PATIENCE_SECONDS)
            wait_until(lambda: known(queue, "runs").status is TaskStatus.TAKEN)
            work.worker.stop_at_once()
            wait_until(lambda: known(queue, "runs").status is TaskStatus.PENDING)
            store.open.set()
            report = work.ended()
        assert (report.given_back, report.unfinished) == (["runs"], [])
        counts = (
            report.outcomes[outcome],
            report.outcomes[Outcome.GIVEN_BACK],
            sum(report.outcomes.values()),
        )
        assert counts == (1, 1, 2)
        assert (known(queue, "done").status, known(queue, "done").attempts) == (status, 1)

    def test_it_does_not_wait_for_ever_for_a_settlement(
        self, store: LateSettlements, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease_loop, "GIVE_BACK_SECONDS", 0.05)
        queue = Queue(store)
        queue.put("work", task_id="done")
        with Ending(queue) as work:
            assert store.waits.wait(PATIENCE_SECONDS)
            work.worker.stop_at_once()
            report = work.ended()
            assert not store.open.is_set()
        assert (report.given_back, report.unfinished) == ([], ["done"])

    def test_a_coroutine_that_ended_is_not_given_back_while_the_result_of_another_is_encoded(self) -> None:
        encodes, may_encode = threading.Event(), threading.Event()

        class Slow(JsonCodec):
            def encode(self, value: Any) -> Any:
                if value == "result of slow":
                    encodes.set()
                    assert may_encode.wait(PATIENCE_SECONDS)
                return super().encode(value)

        queue, handlers = Queue.memory(codec=Slow()), Handlers(codec=Slow())
        ended, probed = list[str](), threading.Event()

        @handlers.on("returns")
        async def returns(task: Task) -> str:
            while task.task_id == "quick" and not encodes.is_set():
                await asyncio.sleep(0.005)
            ended.append(task.task_id)
            return f"result of {task.task_id}"

        @handlers.on("hangs")
        async def hangs(_task: Task) -> None:
            while "quick" not in ended:
                await asyncio.sleep(0.005)
            for _ in range(10):  # until the loop has reported it to the worker
                await asyncio.sleep(0)
            probed.set()
            await asyncio.Event().wait()

        kinds = {"quick": "returns", "slow": "returns", "hangs": "hangs"}
        queue.put_many([{"payload": 0, "task_id": name, "kind": kind} for name, kind in kinds.items()])
        with InThread(Worker(queue, handlers, poll_seconds=0.01)) as work:
            assert probed.wait(PATIENCE_SECONDS)
            work.worker.stop_at_once()
            wait_until(lambda: known(queue, "hangs").status is TaskStatus.PENDING)
            may_encode.set()
            report = work.ended()
        assert report.given_back == ["hangs"]
        assert queue.stats().success == 2

    def test_a_coroutine_does_not_start_whose_task_is_given_back(self) -> None:
        class Stopping(MemoryStore):
            def paused(self, queue: str) -> bool:  # the first call of a claim
                worker.stop_at_once()
                return super().paused(queue)

        queue, handlers, started = Queue(Stopping()), Handlers(), list[str]()

        @handlers.on("k")
        async def noted(task: Task) -> None:
            started.append(task.task_id)

        queue.put(None, task_id="a", kind="k")
        worker = Worker(queue, handlers, poll_seconds=0.01)
        assert worker.run().given_back == ["a"]
        assert known(queue, "a").status is TaskStatus.PENDING
        queue.put(None, task_id="b", kind="k")
        (claim,) = queue.claim()
        handlers(claim.task)  # the handlers' event loop has run since
        assert started == ["b"]


class TestOverrun:
    def test_a_run_that_returned_does_not_overrun_while_its_settlement_waits(
        self, store: LateSettlements, clock: Clock
    ) -> None:
        queue = Queue(store, clock=clock, lease_seconds=20)
        queue.put("work", task_id="done")
        with Ending(queue, Reject("wrong"), max_run_seconds=30) as work:
            assert store.waits.wait(PATIENCE_SECONDS)
            for _ in range(3):
                clock.advance(15)
                wait_until(lambda: lease_of(queue, "done") == clock.now + 20)
            store.open.set()
            wait_until(lambda: work.observer.settlements == [("done", Outcome.FAILED, "wrong")])
            report = work.ended()
        assert (report.overran, work.observer.overruns) == ([], [])

    def test_the_end_waits_for_the_settlement_of_a_run_that_overran(
        self, store: LateSettlements, clock: Clock
    ) -> None:
        queue = Queue(store, clock=clock, lease_seconds=20)
        queue.put("hangs", task_id="done")
        with Hanging(queue, clock) as work:
            work.overrun("done")
            lease_until = lease_of(queue, "done")
            work.release.set()
            assert store.waits.wait(PATIENCE_SECONDS)
            work.worker.stop()
            # It has overrun, but only its settlement is left, so its lease is extended again.
            wait_until(lambda: lease_of(queue, "done") > lease_until)
            assert work.report is None
            store.open.set()
            report = work.ended()
        assert (report.overran, report.unfinished) == (["done"], [])
        assert report.outcomes[Outcome.SUCCEEDED] == 1


class TestAtMostOnce:
    def test_a_late_acknowledgement_does_not_hold_up_later_claims(
        self, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The run has no lease any more; that it ends late says nothing about the store."""
        monkeypatch.setattr(settle, "SETTLE_BACKOFF", Backoff(0.02, 0.05))
        queue = Queue(FailingStore(changes_that_fail=1), clock=clock, lease_seconds=20, order="fifo")
        queue.put("hangs", task_id="a")
        with Hanging(queue, clock, concurrency=2, at_most_once=True, max_run_seconds=None) as work:
            wait_until(lambda: work.started["a"] == 1)
            clock.advance(30)
            queue.put("work", task_id="b")
            wait_until(lambda: work.started["b"] == 1)
            assert not work.release.is_set()
            assert [task_id for task_id, *_ in work.observer.settlements if task_id == "a"] == []

    def test_an_extension_that_the_acknowledgement_overtook_does_not_cancel_the_run(
        self, clock: Clock
    ) -> None:
        queue = Queue.memory(clock=clock, lease_seconds=20)
        queue.put("work", task_id="a")
        (claim,) = queue.claim()
        runs = TaskRuns(on_end=lambda: None)
        run = runs.begin(claim, clock.now)
        runs.settles(run)
        queue.complete(claim)
        clock.advance(15)
        renew(queue, runs)
        run.enter(Phase.RUNNING_ONCE)
        assert not run.claim.task.cancelled
        run.claim.task.progress(0.5)

    def test_a_lease_that_is_lost_while_it_runs_cancels_a_run(self, clock: Clock) -> None:
        queue = Queue.memory(clock=clock, lease_seconds=20)
        queue.put("work", task_id="a")
        runs = TaskRuns(on_end=lambda: None)
        run = runs.begin(queue.claim()[0], clock.now)
        queue.cancel("a", force=True)
        clock.advance(15)
        renew(queue, runs)
        assert run.claim.task.cancelled
        with pytest.raises(LeaseLost):
            run.claim.task.progress(0.5)


def test_a_run_that_is_cancelled_while_its_coroutine_starts_cancels_the_coroutine() -> None:
    queue = Queue.memory()
    queue.put("work", task_id="a")
    run, answer = TaskRun(queue.claim()[0], 0.0), Future[Any]()
    run.cancel("its task is CANCELLED now")
    run.await_coroutine(answer)
    assert answer.cancelled()


def test_an_observer_that_fails_ends_the_worker_once_the_other_runs_are_over() -> None:
    class Failing(Quiet):
        def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
            super().settled(claim, outcome, run_seconds, error)
            if claim.task.task_id != "last":
                raise ZeroDivisionError(claim.task.task_id)

    queue, observer, releases = Queue.memory(), Failing(), {name: threading.Event() for name in ("b", "last")}
    queue.put_many([{"payload": 0, "task_id": name} for name in ("a", "b", "last")])
    errors: list[Exception] = []

    def runner(task: Task) -> None:
        if task.task_id in releases:
            assert releases[task.task_id].wait(PATIENCE_SECONDS)

    def work() -> None:
        try:
            worker.run()
        except ZeroDivisionError as error:
            errors.append(error)

    worker = Worker(queue, runner, observer=observer, poll_seconds=0.01)
    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: worker.status().state is WorkerState.DRAINING)
    releases["b"].set()
    wait_until(lambda: len(observer.settlements) == 2)
    thread.join(0.1)
    releases["last"].set()
    thread.join(PATIENCE_SECONDS)
    assert [str(error) for error in errors] == ["a"]
    assert worker.status().outcomes[Outcome.SUCCEEDED] == 3


def test_a_task_runs_although_an_observer_failed_at_its_claim() -> None:
    class Failing(Quiet):
        def claimed(self, claim: Claim, age_seconds: float) -> None:
            raise ZeroDivisionError(claim.task.task_id, age_seconds)

    queue = Queue.memory()
    queue.put("work", task_id="a")
    with pytest.raises(ZeroDivisionError):
        Worker(queue, lambda _task: None, observer=Failing(), poll_seconds=0.01).run()
    assert known(queue, "a").status is TaskStatus.SUCCESS


def test_a_run_that_was_settled_does_not_run_again() -> None:
    queue = Queue.memory()
    queue.put("work")
    run = TaskRun(queue.claim()[0], 0.0)
    for phase in (Phase.SETTLING, Phase.FREED):
        run.enter(phase)
    with pytest.raises(RuntimeError):
        run.enter(Phase.RUNNING_ONCE)
    assert run.phase is Phase.FREED
