"""The leases of running tasks: renewal, and runs that exceed their time limit."""

import threading
from typing import Any

import pytest

from freshq import Claim, LeaseLost, Queue, Task, Worker
from freshq.model.task import handle_of
from freshq.stores.lines import Choice, ClaimRequest
from freshq.stores.memory import MemoryStore
from freshq.telemetry import Outcome
from freshq.worker import background, loop
from freshq.worker.background import LeaseRenewal
from freshq.worker.run import Phase, TaskRuns
from freshq.worker.settle import too_late_to_run
from tests.conftest import Clock
from tests.support.patience import PATIENCE_SECONDS
from tests.support.programs import python
from tests.support.readings import known
from tests.support.worker_threads import (
    FailingStore,
    Hanging,
    Quiet,
    SlowClaims,
    lease_of,
    renew,
    wait_until,
    work_off,
)


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
        queue.put_many([{"payload": 0, "task_id": name} for name in "abc"])
        claims = [queue.claim(lease_seconds=seconds)[0] for seconds in (9, 3, 6)]
        for claim in claims:
            runs.begin(claim, clock.now)
        extend = queue.extend

        def noted(claim: Claim, **arguments: Any) -> Claim:
            extended.append(claim.task.task_id)
            return extend(claim, **arguments)

        monkeypatch.setattr(queue, "extend", noted)
        monkeypatch.setattr(background, "MAX_EXTENSIONS", 1)
        renew(queue, runs)
        assert extended == [claims[index].task.task_id for index in (1, 2, 0)]
        assert {run.claim.lease_until for run in runs.running} <= {clock.now + 20}

    def test_a_run_that_waits_for_the_store_is_not_too_long(self, clock: Clock) -> None:
        queue = Queue.memory(clock=clock, lease_seconds=20)
        runs, overran = TaskRuns(on_end=lambda: None), list[str]()
        queue.put_many([{"payload": 0, "task_id": name} for name in "abc"])
        done, unsettled, hangs = (runs.begin(claim, clock.now) for claim in queue.claim(3))
        runs.settles(done, frees_slot=True)
        runs.settles(unsettled)
        unsettled.enter(Phase.UNSETTLED)
        clock.advance(15)
        renew(queue, runs, 10.0, lambda run, _seconds: overran.append(run.claim.task.task_id))
        assert overran == [hangs.claim.task.task_id]
        assert {run.claim.lease_until for run in runs.running} == {clock.now + 20}
        # The function still knows its run, although the claim is another one.
        assert handle_of(done.claim.task) is done.handle

    def test_an_error_in_the_renewal_thread_ends_the_worker(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(_renewal: LeaseRenewal) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(LeaseRenewal, "renew", fail)
        with pytest.raises(ZeroDivisionError):
            Worker(Queue.memory(), str, poll_seconds=0.01).run()

    def test_an_observer_that_fails_at_an_overrun_ends_the_worker(self, clock: Clock) -> None:
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

    def test_an_extension_that_fails_is_retried(self, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
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


class TestMaxRunSeconds:
    @pytest.fixture
    def queue(self, clock: Clock) -> Queue:
        return Queue.memory(clock=clock, lease_seconds=20, order="fifo", max_attempts=2)

    def test_other_tasks_run_while_one_exceeds_its_limit(self, queue: Queue, clock: Clock) -> None:
        queue.put("hangs", task_id="a")
        with Hanging(queue, clock) as work:
            work.overrun("a")
            queue.put("ends", task_id="b")
            wait_until(lambda: queue.stats().success == 1)
            report = work.ended()
        assert work.observer.overruns == [("a", 31)]
        assert (report.claimed, report.overran, report.unfinished) == (2, ["a"], ["a"])
        assert report.outcomes[Outcome.SUCCEEDED] == 1

    def test_after_the_limit_the_lease_is_not_extended(self, queue: Queue, clock: Clock) -> None:
        queue.put("hangs", task_id="a")
        with Hanging(queue, clock) as work:
            work.overrun("a")
            lease_until = lease_of(queue)
            assert lease_until == clock.now + 4
            assert queue.admin.recover() == 0
            queue.put("hangs", task_id="b")
            work.extend("b")  # all leases have been checked since
            assert lease_of(queue) in (lease_until, 0.0)  # 0: it expired, and the upkeep noticed

    def test_the_task_returns_with_its_attempt_counted_and_the_run_cannot_settle_it(
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
            assert queue.complete(claim, result="by another").result == "by another"

    def test_after_the_last_attempt_it_is_a_dead_letter(self, clock: Clock) -> None:
        queue = Queue.memory(clock=clock, lease_seconds=20, max_attempts=1)
        queue.put("hangs", task_id="a")
        with Hanging(queue, clock) as work:
            work.overrun("a")
            clock.advance(20)
            wait_until(lambda: queue.stats().failure == 1)  # recovered by the worker's own claims
        assert known(queue, "a").error == "lease expired in attempt 1 of 1"

    def test_a_run_that_ends_while_its_lease_lasts_still_settles(self, queue: Queue, clock: Clock) -> None:
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

    def test_the_limit_applies_while_draining(self, queue: Queue, clock: Clock) -> None:
        queue.put("hangs", task_id="a")
        with Hanging(queue, clock) as work:
            wait_until(lambda: work.started["a"] == 1)
            work.worker.stop()
            clock.advance(31)
            assert work.ended().overran == ["a"]

    def test_with_too_many_overrunning_runs_the_worker_stops(
        self, queue: Queue, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(loop, "MAX_OVERRUNNING", 2)
        queue.put_many([{"payload": "hangs", "task_id": name} for name in "abc"])
        with Hanging(queue, clock) as work:
            work.overrun("a", "b")
            wait_until(lambda: work.report is not None)
            assert work.ended().overran == ["a", "b"]
            assert work.started["c"] == 0
        assert "restart the process" in caplog.text

    def test_a_run_that_hangs_does_not_keep_the_process_alive(self) -> None:
        code = (
            "import threading, freshq; q = freshq.Queue.memory(); q.put(1, task_id='a'); "
            "w = freshq.Worker(q, lambda _: threading.Event().wait(), max_run_seconds=0.05, "
            "poll_seconds=0.01, idle_exit_seconds=0.1); print(w.run().overran)"
        )
        done = python("-c", code, timeout=60)
        assert done.stdout.strip() == "['a']"


class Stalling(MemoryStore):
    """A store whose next claim answers four seconds after it took the tasks."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock, self.stalls = clock, 1

    def take(self, request: ClaimRequest, choice: Choice) -> list[Task]:
        tasks = super().take(request, choice)
        if tasks and self.stalls:
            self.stalls -= 1
            self._clock.advance(4)
        return tasks


class TestTooLate:
    """Tasks from a stalled claim are checked again before their runs start."""

    def test_a_task_past_its_deadline_is_shed_and_not_run(self, clock: Clock) -> None:
        queue, ran = Queue(Stalling(clock), clock=clock, lease_seconds=60), list[str]()
        queue.put("live", task_id="live")
        queue.put("stale", task_id="stale", max_age_seconds=3.5)
        report = work_off(queue, lambda task: ran.append(task.task_id))
        assert ran == ["live"]
        assert report.claimed == report.outcomes[Outcome.SUCCEEDED] == 1
        stats = queue.stats()
        assert (stats.shed, stats.success, stats.taken) == (1, 1, 0)
        assert stats.shed_by_reason == {"expired": 1}

    def test_a_claim_that_goes_stale_before_its_run_is_shed(self, clock: Clock) -> None:
        queue = Queue.memory(clock=clock)
        queue.put("work", max_age_seconds=3)
        (claim,) = queue.claim()
        clock.advance(3)
        end = too_late_to_run(queue, claim)
        assert end is not None
        assert (end.outcome, end.error) == (Outcome.SHED, "the deadline passed")
        queue.settle_many([end.settlement])
        assert queue.stats().shed_by_reason == {"expired": 1}

    def test_a_task_whose_lease_expired_is_not_run_under_it(self, clock: Clock) -> None:
        queue, attempts = Queue(Stalling(clock), clock=clock, lease_seconds=3), list[int]()
        queue.put("work", task_id="a")
        report = work_off(queue, lambda task: attempts.append(task.attempts), concurrency=1)
        assert attempts == [1]  # the claim extended the lease before it was returned
        assert report.claimed == 1
        assert (report.outcomes[Outcome.LEASE_LOST], report.outcomes[Outcome.SUCCEEDED]) == (0, 1)

    def test_a_task_that_another_worker_has_by_now_is_left_to_it(self, clock: Clock) -> None:
        queue = Queue.memory(clock=clock, lease_seconds=3)
        queue.put("work", task_id="a")
        (lost,) = queue.claim()
        clock.advance(4)
        (held,) = queue.claim()
        end = too_late_to_run(queue, lost)
        assert end is not None
        (answer,) = queue.settle_many([end.settlement])
        assert isinstance(answer, LeaseLost)
        assert too_late_to_run(queue, held) is None
        assert lease_of(queue) == held.lease_until
