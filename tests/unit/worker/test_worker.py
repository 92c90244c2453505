"""The worker: outcomes, slots, its end, failing stores, options and shared limits."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from freshq import Busy, Claim, Handlers, Queue, Reject, Retry, Task, TaskStatus, Worker
from freshq.errors import Unreachable
from freshq.policy.limits import MAX_PREFETCHED, ConcurrencyLimit, RetryBudget, SharedBucket
from freshq.policy.retry import Backoff
from freshq.queue.core import core_of
from freshq.queue.shared.limits import SharedSlots
from freshq.stores.memory import MemoryStore
from freshq.telemetry import Outcome, RunReport
from freshq.worker import loop, settle
from freshq.worker.limits import StartLimits
from freshq.worker.options import parse_worker_options
from freshq.worker.report import LoggingObserver, WorkerState
from freshq.worker.runner import load_runner
from tests.conftest import Clock
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import known
from tests.support.refusals import refused
from tests.support.worker_threads import FailingStore, InThread, Quiet, raising, wait_until, work_off


class TestOutcomes:
    def run_one(self, runner: Callable[[Task], Any], **options: Any) -> tuple[Queue, RunReport, Task, Quiet]:
        queue = Queue.memory(**options)
        queue.put("work", task_id="a")
        observer = Quiet()
        report = work_off(queue, runner, observer=observer)
        task = known(queue, "a")
        return queue, report, task, observer

    def test_a_run_behind_which_a_task_was_put_is_not_repeated(self) -> None:
        queue, ran = Queue.memory(), []

        def run(task: Task) -> None:
            ran.append(task.payload)
            if len(ran) < 4:
                queue.put(len(ran), task_id="a", on_conflict="after")
                raise (Retry("once more"), Busy("full"), KeyError("work"))[len(ran) - 1]

        queue.put(0, task_id="a")
        report = work_off(queue, run, observer=Quiet())
        assert (ran, known(queue, "a").status) == ([0, 1, 2, 3], TaskStatus.SUCCESS)
        assert (report.outcomes[Outcome.CANCELLED], report.outcomes[Outcome.SUCCEEDED]) == (3, 1)

    def test_retry_waits_as_long_as_it_says(self) -> None:
        queue, report, task, _ = self.run_one(raising(Retry("no luck", delay_seconds=500)))
        assert (task.status, task.error) == (TaskStatus.PENDING, "no luck")
        assert task.not_before == pytest.approx(queue.admin.now() + 500, abs=60)
        assert report.outcomes[Outcome.RETRIED] == 1

    @pytest.mark.parametrize(
        ("runner", "status", "outcome", "error"),
        [
            (lambda task: {"echo": task.payload}, TaskStatus.SUCCESS, Outcome.SUCCEEDED, None),
            (raising(Reject("unknown work")), TaskStatus.FAILURE, Outcome.FAILED, "unknown work"),
            (raising(KeyError("work")), TaskStatus.FAILURE, Outcome.FAILED, "KeyError: 'work'"),
        ],
    )
    def test_of_one_attempt(
        self, runner: Callable[[Task], Any], status: TaskStatus, outcome: Outcome, error: str | None
    ) -> None:
        _, report, task, observer = self.run_one(runner, max_attempts=5 if "unknown" in str(error) else 1)
        assert (task.status, task.error, task.attempts) == (status, error, 1)
        assert task.result == ({"echo": "work"} if error is None else None)
        assert report.outcomes[outcome] == report.claimed == report.progress == len(observer.ages) == 1
        assert observer.settlements == [("a", outcome, error)]

    def test_busy_releases_the_task_without_counting_the_attempt(self) -> None:
        calls = Counter[str]()

        def runner(task: Task) -> str:
            calls[task.task_id] += 1
            if calls[task.task_id] == 1:
                raise Busy
            return f"attempt {task.attempts}"

        _, report, task, _ = self.run_one(runner, max_attempts=1)
        assert (task.status, task.result) == (TaskStatus.SUCCESS, "attempt 1")
        assert report.outcomes[Outcome.RELEASED] == 1


class TestSlots:
    def test_never_more_tasks_run_than_there_are_slots_and_few_wait_to_be_settled_or_to_run(self) -> None:
        """Runs end only in groups of four: with fewer than four slots in use, none would."""
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
        assert most == 4
        assert 4 <= taken <= 2 * (4 + MAX_PREFETCHED)

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

        with InThread(Worker(queue, runner, concurrency=2, poll_seconds=0.01)):
            assert slow_started.wait(PATIENCE_SECONDS)
            queue.put("fast")
            assert fast_done.wait(PATIENCE_SECONDS)
            release.set()
        assert queue.stats().success == 2

    def test_a_worker_with_a_rate_looks_for_tasks_no_more_often_than_others(self) -> None:
        class Counted(MemoryStore):
            claims = 0

            def searches_again(self, queue: str) -> bool:  # the last call of an empty claim
                self.claims += 1
                return super().searches_again(queue)

        store = Counted()
        bucket = SharedBucket(rate_per_second=10, burst=10, block=5)
        options: Any = {"poll_seconds": 0.05, "idle_exit_seconds": 0.2}
        Worker(Queue(store), str, rate_per_second=10, shared_bucket=bucket, **options).run()
        assert store.claims <= 6

    def test_the_rate_limits_starts(self) -> None:
        queue = Queue.memory()
        queue.put_many([{"payload": number} for number in range(40)])
        starts: list[float] = []
        work_off(queue, lambda _task: starts.append(time.monotonic()), rate_per_second=100, concurrency=50)
        queue.put_many([{"payload": number} for number in range(140)])
        starts.clear()
        began = time.monotonic()
        work_off(queue, lambda _task: starts.append(time.monotonic()), rate_per_second=100, concurrency=50)
        assert len(starts) == 140
        for moment in starts:
            admitted = sum(start <= moment for start in starts)
            assert admitted <= 100 + 100 * (moment - began) + 1

    @pytest.mark.parametrize("is_shared", [False, True])
    def test_the_rate_counts_units_where_costs_are_named(self, is_shared: bool) -> None:
        rate, costs = 4000.0, [700.0, 100.0, 1300.0] * 5
        queue = Queue.memory()
        queue.put_many([{"payload": number, "cost": cost} for number, cost in enumerate(costs)])
        starts: list[tuple[float, float]] = []

        def run(task: Task) -> None:
            starts.append((time.monotonic(), task.units))
            task.set_cost(task.units / 2)

        limits: Any = {"rate_per_second": rate}
        if is_shared:
            limits = {"shared_bucket": SharedBucket(rate, burst=4000, block=8)}
        began = time.monotonic()
        report = work_off(queue, run, concurrency=4, **limits)
        assert report.outcomes[Outcome.SUCCEEDED] == len(costs)
        assert queue.stats().success == len(costs)
        for moment, _units in starts:
            used = sum(units / 2 for at, units in starts if at <= moment)
            # What four running tasks take less than estimated is returned later; a block may be leased.
            assert used <= 4000 + rate * (moment - began) + 1300 + 8

    def test_a_task_that_costs_more_than_is_left_waits_without_an_attempt(self) -> None:
        queue = Queue.memory(order="fifo")
        queue.put_many([{"payload": number, "cost": 500} for number in range(3)])
        attempts: list[int] = []
        worker = Worker(queue, lambda task: attempts.append(task.attempts), rate_per_second=3, concurrency=3)
        with InThread(worker):
            wait_until(lambda: queue.stats().success == 1)
            wait_until(lambda: queue.stats().pending == 2)
        assert attempts == [1]
        assert [task.attempts for task in queue.list(status="PENDING")] == [0, 0]


class TestEnd:
    def test_idle(self) -> None:
        assert work_off(Queue.memory(), lambda task: task).idle

    def test_without_room_it_does_not_know_whether_there_is_work(self) -> None:
        queue, limit = Queue.memory(), ConcurrencyLimit(1, 1, window_seconds=60)
        others = SharedSlots(core_of(queue).store, queue.name, limit, wanted=1)
        assert others.free(0, queue.admin.now()) == 1
        queue.put("work")
        report = work_off(queue, lambda task: task, limit=limit)
        assert (report.claimed, report.idle) == (0, False)

    def test_after_a_slow_claim_it_asks_once_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It would have missed tasks that came in the meantime."""
        now = [0.0]

        class Slow(MemoryStore):
            claims = 0

            def searches_again(self, name: str) -> bool:  # the last call of an empty claim
                self.claims += 1
                if self.claims == 1:
                    queue.put("late")
                    now[0] += 10
                now[0] += 1
                return super().searches_again(name)

        queue = Queue(Slow())
        monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
        report = work_off(queue, lambda _task: None, idle_exit_seconds=5)
        assert (report.outcomes[Outcome.SUCCEEDED], report.idle) == (1, True)

    def test_stop_settles_running_tasks_and_claims_no_more(self) -> None:
        queue = Queue.memory()
        queue.put_many([{"payload": number} for number in range(10)])
        started, release = threading.Event(), threading.Event()

        def runner(_task: Task) -> None:
            started.set()
            assert release.wait(PATIENCE_SECONDS)

        worker = Worker(queue, runner, concurrency=2, poll_seconds=0.01)
        with InThread(worker):
            assert started.wait(PATIENCE_SECONDS)
            worker.stop()
            wait_until(lambda: worker.status().state is WorkerState.DRAINING)
            release.set()
        stats = queue.stats()
        assert stats.taken == 0
        assert stats.success + stats.pending == 10
        assert 1 <= stats.success <= 2

    def test_a_task_that_does_not_end_in_time_is_reported_and_stays_taken(self) -> None:
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


def test_the_default_observer_writes_to_the_log(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
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
    for switch in queue.admin.take_order_switches():
        observer.switched(switch)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("DEBUG", "task a claimed at age 26.000 s"),
        ("INFO", "task a succeeded after 1.000 s"),
        ("WARNING", "task a failed after 1.000 s: down"),
        ("ERROR", "task a ran longer than max_run_seconds, 30.000 s so far; its lease is no longer extended"),
        ("INFO", "order switched to newest first; oldest task 26.000 s old"),
    ]


class TestFailingStore:
    @pytest.fixture(autouse=True)
    def _claim_again_soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loop, "CLAIM_BACKOFF", Backoff(0.02, 0.05))

    def test_a_few_failed_claims_are_tolerated_and_not_mistaken_for_an_empty_queue(self) -> None:
        queue = Queue(FailingStore(claims_that_fail=2))
        queue.put("work")
        report = work_off(queue, lambda task: task.payload, idle_exit_seconds=0)
        assert report.outcomes[Outcome.SUCCEEDED] == 1

    def test_a_store_that_keeps_failing_is_an_error(self) -> None:
        queue = Queue(FailingStore(claims_that_fail=1000))
        queue.put("work")
        with pytest.raises(Unreachable):
            work_off(queue, lambda task: task.payload, give_up_seconds=0.1)

    def test_settling_is_retried_while_the_lease_lasts(self) -> None:
        queue = Queue(FailingStore(changes_that_fail=2))
        queue.put("work")
        report = work_off(queue, lambda task: task.payload)
        assert report.outcomes[Outcome.SUCCEEDED] == 1

    def test_a_task_that_cannot_be_settled_stays_taken_until_its_lease_expires(
        self, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(settle, "SETTLE_BACKOFF", Backoff(0.02, 0.05))
        store = FailingStore(changes_that_fail=100_000)
        queue = Queue(store, clock=clock, lease_seconds=20, max_attempts=1)
        queue.put("work", task_id="a")
        with InThread(Worker(queue, lambda task: task.payload, poll_seconds=0.01)) as work:
            wait_until(lambda: store.changes_that_fail <= 100_000 - 3)
            assert queue.stats().taken == 1
            clock.advance(30)
            wait_until(lambda: queue.stats().failure == 1)
        report = work.ended()
        assert report.outcomes[Outcome.UNSETTLED] == report.claimed == 1
        task = known(queue, "a")
        assert (task.status, task.error) == (TaskStatus.FAILURE, "lease expired in attempt 1 of 1")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"rate_per_second": 0}, "rate_per_second"),
        ({"poll_seconds": -1}, "poll_seconds"),
        ({"idle_exit_seconds": float("nan")}, "idle_exit_seconds"),
        ({"drain_seconds": -1}, "drain_seconds"),
        ({"max_run_seconds": 0}, "max_run_seconds"),
        ({"give_up_seconds": -1}, "give_up_seconds"),
        ({"observer": object()}, "observer"),
        ({"limit": 5}, "limit"),
        ({"colour": "red"}, "colour"),
        ({"at_most_once": 1}, "at_most_once"),
        ({"transaction": True}, "transaction"),  # fields that this queue does not have
        ({"transaction": True, "at_most_once": True}, "at_most_once"),
        ({"transaction": True, "max_run_seconds": 60.0}, "max_run_seconds"),
        ({"transaction": True, "retry_budget": RetryBudget(0.1)}, "retry_budget"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], named: str) -> None:
    with refused(named):
        Worker(Queue.memory(), lambda task, connection=None: (task, connection), **options)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_colon", "'no_colon' is not of the form 'module:function', such as 'orders.runner:run'"),
        (":run", "':run' is not of the form"),
        ("orders.py:run", "'orders.py' is a file, not a module; write 'orders:run', from its folder"),
        ("no.such.module:run", r"cannot be imported \(No module named 'no'\); look again"),
        ("json:no_such_function", "has no function 'no_such_function'"),
        ("json:dumbs", "has no function 'dumbs'; is it 'dumps'"),
        ("json:__name__", "has a str, not a function, as '__name__'"),
    ],
)
def test_a_wrong_runner_is_an_error_that_says_what_to_do(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"runner: .*{message}"):
        load_runner(name, "look again")


@pytest.mark.parametrize(
    ("code", "line", "error"),
    [
        ("import json\n\njson.loads('{')\n", 3, "JSONDecodeError"),
        ("import json\nx =\n", 2, "SyntaxError"),
        ("import importlib\n\n\nimportlib.import_module('')\n", 4, "ValueError"),  # raised in frozen code
    ],
)
def test_a_module_that_fails_when_imported_names_its_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, line: int, error: str
) -> None:
    (tmp_path / f"broken_{line}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=rf"{tmp_path}/broken_{line}\.py, line {line}: {error}: "):
        load_runner(f"broken_{line}:run", "look again")


@dataclass
class Keeps:
    task: Task


def test_a_class_is_no_runner() -> None:
    with refused("runner"):
        Worker(Queue.memory(), load_runner(f"{__name__}:Keeps"))
    with pytest.raises(ValueError, match="handler of 'a'"):
        Handlers().on("a")(Keeps)


@pytest.mark.parametrize(
    "runner", [lambda task: [Keeps(task)], Claim.of, lambda task: {"of": [task.lease_token]}, asdict]
)
def test_no_result_has_a_token(runner: Callable[[Task], Any]) -> None:
    queue = Queue.memory()
    queue.put("work", task_id="a")
    report = work_off(queue, runner)
    task = known(queue, "a")
    assert (task.status, task.result, report.outcomes[Outcome.FAILED]) == (TaskStatus.FAILURE, None, 1)
    assert "token" in (task.error or "")


def test_no_token_is_shown() -> None:
    queue = Queue.memory()
    queue.put("work")
    (claim,) = queue.claim()
    assert claim.token not in repr(claim)


def test_a_runner_is_loaded_by_its_name() -> None:
    assert load_runner("json:dumps")({"a": 1}) == '{"a": 1}'  # type: ignore[arg-type]


class TestSharedLimits:
    """Limits that all workers of a queue share, as a worker applies them."""

    def test_all_workers_together_run_no_more_tasks_than_the_limit(self, clock: Clock) -> None:
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

    def test_a_busy_downstream_gets_fewer_tasks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It serves two at a time; the limit falls until it rejects hardly any call."""
        monkeypatch.setattr(loop, "BUSY_BACKOFF", Backoff(0.1, 2.0))
        queue = Queue.memory(max_attempts=1)
        queue.put_many([{"payload": number} for number in range(200)])
        free = threading.BoundedSemaphore(2)

        def runner(_task: Task) -> None:
            if not free.acquire(blocking=False):
                raise Busy
            time.sleep(0.01)
            free.release()

        limit = ConcurrencyLimit(1, 16, window_seconds=0.1)
        report = work_off(queue, runner, concurrency=16, limit=limit, idle_exit_seconds=0.3)
        assert queue.stats().success == 200
        assert report.outcomes[Outcome.RELEASED] < 60

    def test_a_shared_bucket_spreads_starts_over_time(self) -> None:
        queue = Queue.memory()
        queue.put_many([{"payload": number} for number in range(40)])
        starts: list[float] = []
        bucket = SharedBucket(rate_per_second=40, burst=4, block=2)
        began = time.monotonic()
        work_off(queue, lambda _task: starts.append(time.monotonic()), shared_bucket=bucket)
        assert len(starts) == 40
        for count, start in enumerate(sorted(starts), 1):
            assert count <= 4 + 2 + 40 * (start - began) + 1

    def test_tasks_without_retry_budget_are_dead_letters(self) -> None:
        queue = Queue.memory(backoff=Backoff(0.001, 0.001), max_attempts=100)
        queue.put_many([{"payload": number} for number in range(50)])

        def runner(_task: Task) -> None:
            raise Retry("down", delay_seconds=0)

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


def test_a_task_that_runs_already_is_charged_as_a_debt() -> None:
    queue = Queue.memory()
    for cost in (3, 5, None):
        queue.put("work", cost=cost)
    limits = StartLimits(queue, parse_worker_options({"rate_per_second": 0.001}))
    claims = queue.claim(3)
    assert limits.available(0) == 1
    for claim in claims:
        limits.charge(claim.task)
    claims[0].task.set_cost(0)
    limits.note_units([claim.task for claim in claims])
    assert limits.available(0) == 0
    assert limits.awaits_token
    assert limits.seconds_to_wait(0, 1e9) == pytest.approx(8000, rel=0.01)
