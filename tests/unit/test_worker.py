"""The worker: outcomes, slots, leases, and what it does when the store fails."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from freshq import Busy, Outcome, Queue, Reject, Retry, TaskStatus, Unreachable, Worker
from freshq.policy.limits import ConcurrencyLimit, RetryBudget, SharedBucket
from freshq.policy.retry import Backoff
from freshq.stores.memory import MemoryStore
from freshq.worker import worker
from freshq.worker.leases import LeaseRenewal
from freshq.worker.report import LoggingObserver
from freshq.worker.runner import load_runner
from freshq.worker.runs import TaskRuns

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from freshq import Claim, RunReport, Task
    from freshq.policy.order import OrderSwitch
    from freshq.stores.base import ClaimRequest, Guard
    from tests.conftest import Clock

PATIENCE_SECONDS = 20.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def work_off(queue: Queue, runner: Callable[[Task], Any], **options: Any) -> RunReport:
    """Run a worker until nothing is left."""
    options = {"poll_seconds": 0.01, "idle_exit_seconds": 0.05, **options}
    return Worker(queue, runner, **options).run()


class Quiet:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.ages: list[float] = []
        self.settlements: list[tuple[str, Outcome, str | None]] = []
        self.switches: list[OrderSwitch] = []
        self.overruns: list[tuple[str, float]] = []

    def claimed(self, claim: Claim, age_seconds: float) -> None:
        del claim
        self.ages.append(age_seconds)

    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        assert run_seconds >= 0
        self.settlements.append((claim.task.task_id, outcome, error))

    def overran(self, claim: Claim, run_seconds: float) -> None:
        self.overruns.append((claim.task.task_id, run_seconds))

    def switched(self, switch: OrderSwitch) -> None:
        self.switches.append(switch)


class TestOutcomes:
    def run_one(self, runner: Callable[[Task], Any], **options: Any) -> tuple[Queue, RunReport, Task, Quiet]:
        queue = Queue.memory(**options)
        queue.put("work", task_id="a")
        observer = Quiet()
        report = work_off(queue, runner, observer=observer)
        task = queue.get("a")
        assert task is not None
        return queue, report, task, observer

    def test_a_result_is_success(self) -> None:
        _, report, task, observer = self.run_one(lambda task: {"echo": task.payload})
        assert (task.status, task.result) == (TaskStatus.SUCCESS, {"echo": "work"})
        assert report.outcomes[Outcome.SUCCEEDED] == report.claimed == report.progress == 1
        assert observer.settlements == [("a", Outcome.SUCCEEDED, None)]
        assert len(observer.ages) == 1

    def test_retry_waits_as_long_as_it_says(self) -> None:
        def runner(task: Task) -> None:
            raise Retry(delay_seconds=500, error=f"no luck with {task.payload}")

        queue, report, task, _ = self.run_one(runner)
        assert (task.status, task.error) == (TaskStatus.PENDING, "no luck with work")
        assert task.not_before == pytest.approx(queue.now() + 500, abs=60)
        assert report.outcomes[Outcome.RETRIED] == 1

    def test_reject_is_a_dead_letter_at_once(self) -> None:
        def runner(task: Task) -> None:
            raise Reject("makes no sense: " + task.payload)

        _, report, task, _ = self.run_one(runner)
        assert (task.status, task.error, task.attempts) == (TaskStatus.FAILURE, "makes no sense: work", 1)
        assert report.outcomes[Outcome.FAILED] == 1

    def test_an_exception_is_retried_and_after_the_last_attempt_a_dead_letter(self) -> None:
        def runner(task: Task) -> None:
            raise KeyError(task.payload)

        _, report, task, observer = self.run_one(runner, max_attempts=1)
        assert (task.status, task.error) == (TaskStatus.FAILURE, "KeyError: 'work'")
        assert report.outcomes[Outcome.FAILED] == 1
        assert observer.settlements == [("a", Outcome.FAILED, "KeyError: 'work'")]

    def test_busy_gives_the_task_back_untried(self) -> None:
        calls = Counter[str]()

        def runner(task: Task) -> str:
            calls[task.task_id] += 1
            if calls[task.task_id] == 1:
                raise Busy
            return f"attempt {task.attempts}"

        _, report, task, _ = self.run_one(runner, max_attempts=1)
        assert (task.status, task.result) == (TaskStatus.SUCCESS, "attempt 1")
        assert report.outcomes[Outcome.RELEASED] == 1

    @pytest.mark.parametrize("result", [object(), float("nan"), "x" * 500_000])
    def test_a_result_that_cannot_be_kept_is_a_dead_letter_not_an_endless_retry(self, result: object) -> None:
        _, report, task, _ = self.run_one(lambda _task: result)
        assert task.status is TaskStatus.FAILURE
        assert (task.error or "").startswith("result: ")
        assert report.outcomes[Outcome.FAILED] == 1


class TestSlots:
    def test_never_more_in_work_than_slots_and_never_more_claimed_than_can_start(self) -> None:
        """A run ends only together with three others: with fewer slots none would."""
        queue = Queue.memory()
        queue.put_many([{"payload": number} for number in range(60)])
        together, lock = threading.Barrier(4, timeout=PATIENCE_SECONDS), threading.Lock()
        in_work = most = taken = 0

        def runner(_task: Task) -> None:
            nonlocal in_work, most, taken
            with lock:
                in_work += 1
                most = max(most, in_work)
                taken = max(taken, queue.stats().taken)
            together.wait()
            with lock:
                in_work -= 1

        report = work_off(queue, runner, concurrency=4)
        assert report.outcomes[Outcome.SUCCEEDED] == 60
        assert most == taken == 4

    def test_a_slot_is_refilled_with_the_newest_while_another_is_still_in_use(self) -> None:
        queue = Queue.memory()
        queue.put("slow")
        slow_started, fast_done, release = threading.Event(), threading.Event(), threading.Event()

        def runner(task: Task) -> None:
            if task.payload == "slow":
                slow_started.set()
                assert release.wait(PATIENCE_SECONDS)
            else:
                fast_done.set()

        worker = Worker(queue, runner, concurrency=2, poll_seconds=0.01, idle_exit_seconds=0.05)
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert slow_started.wait(PATIENCE_SECONDS)
        queue.put("fast")
        assert fast_done.wait(PATIENCE_SECONDS)
        release.set()
        thread.join(PATIENCE_SECONDS)
        assert queue.stats().success == 2

    def test_the_rate_bounds_what_is_started(self) -> None:
        queue = Queue.memory()
        queue.put_many([{"payload": number} for number in range(40)])
        starts: list[float] = []
        work_off(queue, lambda _task: starts.append(time.monotonic()), rate_per_second=100, concurrency=50)
        queue.put_many([{"payload": number} for number in range(200)])
        starts.clear()
        began = time.monotonic()
        work_off(queue, lambda _task: starts.append(time.monotonic()), rate_per_second=100, concurrency=50)
        assert len(starts) == 200
        for moment in starts:
            admitted = sum(start <= moment for start in starts)
            assert admitted <= 100 + 100 * (moment - began) + 1


class TestEnd:
    def test_idle(self) -> None:
        assert work_off(Queue.memory(), lambda task: task).idle

    def test_stop_settles_what_is_in_work_and_claims_no_more(self) -> None:
        queue = Queue.memory()
        queue.put_many([{"payload": number} for number in range(10)])
        started, release = threading.Event(), threading.Event()

        def runner(_task: Task) -> None:
            started.set()
            assert release.wait(PATIENCE_SECONDS)

        worker = Worker(queue, runner, concurrency=2, poll_seconds=0.01)
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert started.wait(PATIENCE_SECONDS)
        worker.stop()
        release.set()
        thread.join(PATIENCE_SECONDS)
        stats = queue.stats()
        assert stats.taken == 0
        assert stats.success + stats.pending == 10
        assert 1 <= stats.success <= 2

    def test_at_a_time_of_the_queues_clock(self) -> None:
        queue = Queue.memory(clock=lambda: 1000.0)
        queue.put("work")
        assert Worker(queue, lambda task: task).run(until=1000.0).claimed == 0

    def test_by_a_condition(self) -> None:
        queue = Queue.memory()
        queue.put_many([{"payload": number} for number in range(10)])
        worker = Worker(queue, lambda task: task.payload, concurrency=1, poll_seconds=0.01)
        report = worker.run(until=lambda: queue.stats().success >= 3)
        assert report.outcomes[Outcome.SUCCEEDED] >= 3
        assert not report.idle

    def test_what_does_not_end_in_time_is_named_and_stays_taken(self) -> None:
        queue = Queue.memory()
        queue.put("endless", task_id="endless")
        release = threading.Event()
        worker = Worker(
            queue, lambda _task: release.wait(PATIENCE_SECONDS), drain_seconds=0.05, poll_seconds=0.01
        )
        try:
            report = worker.run(until=lambda: queue.stats().taken == 1)
            assert report.unfinished == ["endless"]
            assert queue.stats().taken == 1
        finally:
            release.set()
        wait_until(lambda: queue.stats().success == 1)


class TestLeases:
    def test_a_lease_is_extended_while_its_task_runs(self, clock: Clock) -> None:
        queue = Queue.memory(clock=clock, lease_seconds=20)
        queue.put("hangs", task_id="a")
        with Hanging(queue, clock, max_run_seconds=None) as work:
            for _ in range(5):
                work.extend("a")
                assert queue.claim() == []
        assert work.ended().outcomes[Outcome.SUCCEEDED] == 1

    def test_a_lease_is_extended_while_a_claim_takes_long(self, clock: Clock) -> None:
        store = SlowClaims()
        queue = Queue(store, clock=clock, lease_seconds=20)
        queue.put("hangs", task_id="a")
        with Hanging(queue, clock, concurrency=2, max_run_seconds=None) as work:
            assert store.waits.wait(PATIENCE_SECONDS)
            work.extend("a")
            store.answer.set()

    def test_a_lease_that_expires_first_is_extended_first(
        self, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = Queue.memory(clock=clock, lease_seconds=20)
        runs, extended = TaskRuns(on_end=lambda: None), list[str]()
        release = threading.Event()
        queue.put_many([{"payload": 0, "task_id": name} for name in "abc"])
        claims = queue.claim(limit=3)
        for claim, seconds in zip(claims, (9, 3, 6), strict=True):
            runs.start(queue.extend(claim, seconds), clock.now, lambda _run: waited(release))
        extend = queue.extend

        def noted(claim: Claim, seconds: float) -> Claim:
            extended.append(claim.task.task_id)
            return extend(claim, seconds)

        monkeypatch.setattr(queue, "extend", noted)
        LeaseRenewal(queue, runs, 1.0, None, lambda *_: None).renew()
        release.set()
        assert extended == [claims[index].task.task_id for index in (1, 2, 0)]
        assert {run.claim.lease_until for run in runs.running} <= {clock.now + 20}

    def test_an_observer_that_fails_in_the_renewal_ends_the_worker(self, clock: Clock) -> None:
        """No error of the second thread is lost."""

        class Failing(Quiet):
            def overran(self, claim: Claim, run_seconds: float) -> None:
                raise ZeroDivisionError(claim.task.task_id, run_seconds)

        queue, release = Queue.memory(clock=clock), threading.Event()
        queue.put("work")
        options: dict[str, Any] = {"max_run_seconds": 5, "poll_seconds": 0.01, "observer": Failing()}

        def runner(_task: Task) -> None:
            clock.advance(5)
            assert release.wait(PATIENCE_SECONDS)

        try:
            with pytest.raises(ZeroDivisionError):
                Worker(queue, runner, **options, drain_seconds=0).run()
        finally:
            release.set()

    def test_a_store_that_does_not_extend_is_asked_again(
        self, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = Queue(FailingStore(changes_that_fail=2), clock=clock, lease_seconds=20)
        queue.put("hangs", task_id="a")
        with Hanging(queue, clock) as work:
            work.extend("a")
        assert caplog.text.count("could not extend the lease of task a") == 2

    def test_a_lost_lease_is_counted_and_changes_nothing(self) -> None:
        queue = Queue.memory()
        queue.put("work", task_id="a")

        def runner(_task: Task) -> str:
            queue.purge(confirm="default")
            return "too late"

        report = work_off(queue, runner)
        assert report.outcomes[Outcome.LEASE_LOST] == 1
        assert report.progress == 0
        assert queue.get("a") is None


class Hanging:
    """A worker in a thread, whose runner hangs on some tasks until it is released."""

    def __init__(self, queue: Queue, clock: Clock, **options: Any) -> None:
        self.queue, self.clock, self.observer = queue, clock, Quiet()
        self.release, self.started = threading.Event(), Counter[str]()
        options = {"concurrency": 1, "poll_seconds": 0.01, "max_run_seconds": 30, **options}
        self.worker = Worker(queue, self._run, observer=self.observer, **options)
        self.report: RunReport | None = None
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self.ended()

    def ended(self) -> RunReport:
        self.worker.stop()
        self._thread.join(PATIENCE_SECONDS)
        assert self.report is not None
        return self.report

    def _work(self) -> None:
        self.report = self.worker.run()

    def _run(self, task: Task) -> str:
        self.started[task.task_id] += 1
        if task.payload == "hangs":
            assert self.release.wait(PATIENCE_SECONDS)
        return "done"

    def overrun(self, *task_ids: str) -> None:
        """Let tasks start, have their leases extended once, and run past the limit, one after the other."""
        for task_id in task_ids:
            self.extend(task_id)
            self.clock.advance(16)
            wait_until(lambda task_id=task_id: task_id in dict(self.observer.overruns))  # type: ignore[misc]

    def extend(self, task_id: str) -> None:
        """Have the lease of a task extended that has run for 15 s since the last extension."""
        wait_until(lambda: self.started[task_id] == 1)
        self.clock.advance(15)
        wait_until(lambda: lease_of(self.queue, task_id) == self.clock.now + 20)


def test_what_an_operator_must_know_is_logged(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="freshq.worker.report")
    queue = Queue.memory(order="adaptive", max_age_seconds=50, clock=clock)
    queue.put("work", task_id="a")
    clock.advance(26)
    (claim,) = queue.claim()
    observer = LoggingObserver()
    observer.claimed(claim, 26)
    observer.settled(claim, Outcome.SUCCEEDED, 1, None)
    observer.settled(claim, Outcome.FAILED, 1, "down")
    observer.overran(claim, 30)
    for switch in queue.take_order_switches():
        observer.switched(switch)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("DEBUG", "task a claimed at age 26.000 s"),
        ("DEBUG", "task a succeeded after 1.000 s: None"),
        ("WARNING", "task a failed after 1.000 s: down"),
        ("ERROR", "task a is still running after 30.000 s; its lease is no longer extended"),
        ("INFO", "order switched to newest first; oldest task 26.000 s old"),
    ]


class TestMaxRunSeconds:
    @pytest.fixture
    def queue(self, clock: Clock) -> Queue:
        return Queue.memory(clock=clock, lease_seconds=20, order="fifo", max_attempts=2)

    def test_others_are_served_beside_a_run_past_its_limit(self, queue: Queue, clock: Clock) -> None:
        queue.put("hangs", task_id="a")
        with Hanging(queue, clock) as work:
            work.overrun("a")
            queue.put("ends", task_id="b")
            wait_until(lambda: queue.stats().success == 1)
            report = work.ended()
        assert work.observer.overruns == [("a", 31)]
        assert (report.claimed, report.overran, report.unfinished) == (2, ["a"], ["a"])
        assert report.outcomes[Outcome.SUCCEEDED] == 1

    def test_past_the_limit_the_lease_is_extended_no_more(self, queue: Queue, clock: Clock) -> None:
        queue.put("hangs", task_id="a")
        with Hanging(queue, clock) as work:
            work.overrun("a")
            lease_until = lease_of(queue)
            assert lease_until == clock.now + 4
            assert queue.recover() == 0
            queue.put("hangs", task_id="b")
            work.extend("b")  # all leases have been checked since
            assert lease_of(queue) == lease_until

    def test_its_task_comes_back_with_the_attempt_counted_and_the_run_settles_nothing(
        self, queue: Queue, clock: Clock
    ) -> None:
        queue.put("hangs", task_id="a")
        with Hanging(queue, clock) as work:
            work.overrun("a")
            work.worker.stop()
            work.ended()
            clock.advance(20)
            (claim,) = queue.claim()
            assert (claim.task.task_id, claim.task.attempts) == ("a", 2)
            work.release.set()
            wait_until(lambda: ("a", Outcome.LEASE_LOST, None) in work.observer.settlements)
            assert queue.complete(claim, "by another").result == "by another"

    def test_after_the_last_attempt_it_is_a_dead_letter(self, clock: Clock) -> None:
        queue = Queue.memory(clock=clock, lease_seconds=20, max_attempts=1)
        queue.put("hangs", task_id="a")
        with Hanging(queue, clock) as work:
            work.overrun("a")
            clock.advance(20)
            wait_until(lambda: queue.stats().failure == 1)  # by the worker's own look at what is due
        task = queue.get("a")
        assert task is not None
        assert task.error == "lease expired in attempt 1 of 1"

    def test_a_run_that_ends_while_its_lease_lasts_settles_after_all(
        self, queue: Queue, clock: Clock
    ) -> None:
        queue.put("hangs", task_id="a")
        with Hanging(queue, clock) as work:
            work.overrun("a")
            work.release.set()
            wait_until(lambda: queue.stats().success == 1)
            wait_until(lambda: work.observer.settlements != [])
            queue.put("ends", task_id="b")
            wait_until(lambda: queue.stats().success == 2)
        report = work.ended()
        assert (report.overran, report.unfinished) == (["a"], [])
        assert sum(report.outcomes.values()) == report.outcomes[Outcome.SUCCEEDED] == report.claimed == 2

    def test_while_it_drains_too(self, queue: Queue, clock: Clock) -> None:
        queue.put("hangs", task_id="a")
        with Hanging(queue, clock) as work:
            wait_until(lambda: work.started["a"] == 1)
            work.worker.stop()
            clock.advance(31)
            assert work.ended().overran == ["a"]

    def test_with_too_many_of_them_the_worker_ends(
        self, queue: Queue, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(worker, "MAX_OVERRUNNING", 2)
        queue.put_many([{"payload": "hangs", "task_id": name} for name in "abc"])
        with Hanging(queue, clock) as work:
            work.overrun("a", "b")
            wait_until(lambda: work.report is not None)
            assert work.ended().overran == ["a", "b"]
            assert work.started["c"] == 0
        assert "restart the process" in caplog.text

    def test_a_run_that_hangs_keeps_no_process_from_ending(self) -> None:
        code = (
            "import threading, freshq; q = freshq.Queue.memory(); q.put(1, 'a'); "
            "w = freshq.Worker(q, lambda _: threading.Event().wait(), max_run_seconds=0.05, "
            "poll_seconds=0.01, idle_exit_seconds=0.1); print(w.run().overran)"
        )
        done = subprocess.run(  # noqa: S603 - this interpreter
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.strip() == "['a']"


def lease_of(queue: Queue, task_id: str = "a") -> float:
    task = queue.get(task_id)
    assert task is not None
    return task.lease_until or 0.0


def waited(release: threading.Event) -> Outcome:
    assert release.wait(PATIENCE_SECONDS)
    return Outcome.SUCCEEDED


class SlowClaims(MemoryStore):
    """A store that answers the claims after the first only when it is allowed to."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.answer = threading.Event(), threading.Event()

    def claim(self, request: ClaimRequest) -> list[Task]:
        tasks = super().claim(request)
        if not tasks:
            self.waits.set()
            assert self.answer.wait(PATIENCE_SECONDS)
        return tasks


class FailingStore(MemoryStore):
    """A store that does not answer for some calls."""

    def __init__(self, claims_that_fail: int = 0, changes_that_fail: int = 0) -> None:
        super().__init__()
        self.claims_that_fail = claims_that_fail
        self.changes_that_fail = changes_that_fail

    def claim(self, request: ClaimRequest) -> list[Task]:
        if self.claims_that_fail:
            self.claims_that_fail -= 1
            raise Unreachable("no answer")
        return super().claim(request)

    def replace(self, task: Task, guard: Guard) -> Task:
        if guard.lease_token is not None and self.changes_that_fail:  # a settling call
            self.changes_that_fail -= 1
            raise Unreachable("no answer")
        return super().replace(task, guard)


class TestFailingStore:
    def test_some_failed_claims_are_borne_and_not_taken_for_an_empty_queue(self) -> None:
        queue = Queue(FailingStore(claims_that_fail=2))
        queue.put("work")
        report = work_off(queue, lambda task: task.payload, idle_exit_seconds=0)
        assert report.outcomes[Outcome.SUCCEEDED] == 1

    def test_a_store_that_keeps_failing_surfaces(self) -> None:
        queue = Queue(FailingStore(claims_that_fail=1000))
        queue.put("work")
        with pytest.raises(Unreachable):
            work_off(queue, lambda task: task.payload)

    def test_settling_is_tried_again_while_the_lease_lasts(self) -> None:
        queue = Queue(FailingStore(changes_that_fail=2))
        queue.put("work")
        report = work_off(queue, lambda task: task.payload)
        assert report.outcomes[Outcome.SUCCEEDED] == 1

    def test_a_task_that_cannot_be_settled_stays_taken_until_its_lease_runs_out(self) -> None:
        queue = Queue(FailingStore(changes_that_fail=1000), lease_seconds=0.3, max_attempts=1)
        queue.put("work", task_id="a")
        report = work_off(queue, lambda task: task.payload, idle_exit_seconds=0.5)
        assert report.outcomes[Outcome.UNSETTLED] == report.claimed == 1
        task = queue.get("a")
        assert task is not None
        assert (task.status, task.error) == (TaskStatus.FAILURE, "lease expired in attempt 1 of 1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "concurrency: "),
        ({"rate_per_second": 0}, "rate_per_second: "),
        ({"poll_seconds": -1}, "poll_seconds: "),
        ({"idle_exit_seconds": float("nan")}, "idle_exit_seconds: "),
        ({"drain_seconds": -1}, "drain_seconds: "),
        ({"max_run_seconds": 0}, "max_run_seconds: "),
        ({"observer": object()}, "observer: "),
        ({"limit": 5}, "limit: "),
        ({"colour": "red"}, "colour: unknown field; .* concurrency, "),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Worker(Queue.memory(), lambda task: task, **options)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_colon", "not of the form 'module:function'"),
        (":run", "not of the form"),
        ("no.such.module:run", "cannot be imported"),
        ("json:no_such_function", "has no function 'no_such_function'"),
        ("json:__name__", "has no function"),
    ],
)
def test_a_wrong_runner_is_named_with_what_to_do(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"runner: .*{message}"):
        load_runner(name)


def test_a_runner_is_found_by_its_name() -> None:
    assert load_runner("json:dumps")({"a": 1}) == '{"a": 1}'  # type: ignore[arg-type]


class TestSharedLimits:
    """What all workers of a queue keep together, through the worker that asks for it."""

    def test_workers_together_never_run_more_than_the_limit(self, clock: Clock) -> None:
        """Every task takes 20 ms of the queue's clock, so that slots change hands, but never expire."""
        queue = Queue.memory(clock=clock)
        queue.put_many([{"payload": number} for number in range(60)])
        lock, two_at_once = threading.Lock(), threading.Event()
        running = most = 0

        def runner(_task: Task) -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
                clock.advance(0.02)
            if running > 1:
                two_at_once.set()
            assert two_at_once.wait(PATIENCE_SECONDS)
            with lock:
                running -= 1

        limit = ConcurrencyLimit(4, 4, window_seconds=2)
        options: dict[str, Any] = {"concurrency": 8, "limit": limit, "poll_seconds": 0.01}
        workers = [Worker(queue, runner, **options) for _ in range(3)]
        threads = [
            threading.Thread(target=worker.run, args=(lambda: queue.stats().success == 60,))
            for worker in workers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert queue.stats().success == 60
        assert 2 <= most <= 4

    def test_a_downstream_that_is_busy_gets_less(self) -> None:
        """It takes two at a time; the limit comes down to where hardly any call is refused."""
        queue = Queue.memory(max_attempts=1)
        queue.put_many([{"payload": number} for number in range(200)])
        places = threading.BoundedSemaphore(2)

        def runner(_task: Task) -> None:
            if not places.acquire(blocking=False):
                raise Busy
            time.sleep(0.01)
            places.release()

        limit = ConcurrencyLimit(1, 16, window_seconds=0.1)
        report = work_off(queue, runner, concurrency=16, limit=limit, idle_exit_seconds=1.5)
        assert queue.stats().success == 200
        assert report.outcomes[Outcome.RELEASED] < 60

    def test_starts_are_spread_over_time_for_all_workers(self) -> None:
        queue = Queue.memory()
        queue.put_many([{"payload": number} for number in range(40)])
        starts: list[float] = []
        bucket = SharedBucket(rate_per_second=40, burst=4, block=2)
        began = time.monotonic()
        work_off(queue, lambda _task: starts.append(time.monotonic()), shared_bucket=bucket)
        assert len(starts) == 40
        for count, start in enumerate(sorted(starts), 1):
            assert count <= 4 + 2 + 40 * (start - began) + 1

    def test_retries_beyond_the_budget_are_dead_letters(self) -> None:
        queue = Queue.memory(backoff=Backoff(0.001, 0.001), max_attempts=100)
        queue.put_many([{"payload": number} for number in range(50)])

        def runner(_task: Task) -> None:
            raise Retry(delay_seconds=0, error="down")

        report = work_off(queue, runner, retry_budget=RetryBudget(fraction=0.2, reserve=5))
        assert report.outcomes[Outcome.RETRIED] <= 5 + 0.2 * 50
        dead = queue.list(status="FAILURE")
        assert len(dead) == 50
        assert dead[0].error == "down; not retried: the retry budget is spent"
        assert queue.redrive() == 50

    def test_an_order_switch_is_observed(self, clock: Clock) -> None:
        queue = Queue.memory(order="adaptive", max_age_seconds=50, clock=clock)
        queue.put("old")
        clock.advance(26)
        observer = Quiet()
        work_off(queue, lambda _task: None, observer=observer)
        assert [switch.newest_first for switch in observer.switches][:1] == [True]
