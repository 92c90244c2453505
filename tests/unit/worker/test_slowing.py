"""A worker whose runs all fail slows down, reports it, and recovers after the first success."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from freshq import Handlers, Queue, Reject, Task, Worker
from freshq.cli.commands.metrics import QueueCollector
from freshq.cli.dashboard.snapshots import PageWatcher
from freshq.policy import breaker
from freshq.policy.breaker import OPEN_AFTER
from freshq.policy.retry import Backoff
from freshq.telemetry import Observer, Outcome
from freshq.worker.limits import RunBreaker
from freshq.worker.report import ObserverBesideTelemetry
from freshq.worker.worker import go_on_with
from tests.support.worker_threads import InThread, Quiet, wait_until

TASKS = 200
CONCURRENCY = 3


class Downstream:
    """A service that is down until it is `up`."""

    def __init__(self) -> None:
        self.up = threading.Event()
        self.calls = 0
        self._lock = threading.Lock()

    def call(self, *_arguments: Any) -> str:
        with self._lock:
            self.calls += 1
        if not self.up.is_set():
            raise OSError("the service does not answer")
        return "done"

    async def call_later(self, task: Task) -> str:
        return self.call(task)


@pytest.fixture
def downstream() -> Downstream:
    return Downstream()


@pytest.fixture
def patient_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "PROBE_BACKOFF", Backoff(0.3, 0.3))


def runner_of(downstream: Downstream, way: str) -> Any:
    if way in ("plain", "transaction"):
        return downstream.call
    handlers = Handlers()

    def handle(task: Task) -> str:
        return downstream.call(task)

    handlers.on("a")(downstream.call_later if way == "coroutine" else handle)
    return handlers


def fill(queue: Queue, **options: Any) -> None:
    queue.put_many([{"payload": number, "kind": "a", **options} for number in range(TASKS)])


def slowed(queue: Queue) -> float:
    return next(
        family.samples[0].value for family in QueueCollector(queue).collect() if "slowed" in family.name
    )


@pytest.mark.usefixtures("patient_probes")
@pytest.mark.parametrize("way", ["plain", "handler", "coroutine"])
def test_an_outage_spends_few_attempts(
    downstream: Downstream, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "freshq.worker.limits")
    queue = Queue.memory(max_age_seconds=None, order="fifo", backoff=Backoff(0.01, 0.01))
    fill(queue)
    options: Any = {"concurrency": CONCURRENCY, "poll_seconds": 0.01}
    with InThread(Worker(queue, runner_of(downstream, way), **options)) as work:
        wait_until(lambda: downstream.calls >= OPEN_AFTER + CONCURRENCY + 2)  # a few probes
        wait_until(lambda: slowed(queue) == 1)
        assert work.worker.status().slowed
        assert PageWatcher(queue).snapshot()["slowed"] == 1
        assert downstream.calls <= OPEN_AFTER + CONCURRENCY + 50  # one of them every 0.15 s
        downstream.up.set()
        wait_until(lambda: queue.stats().success == TASKS)
        assert not work.worker.status().slowed
        wait_until(lambda: slowed(queue) == 0)
    assert queue.stats().failure == 0
    said = [record.getMessage() for record in caplog.records]
    assert sum("one run at a time" in line for line in said) == 1
    assert sum("works normally" in line for line in said) == 1


@pytest.mark.usefixtures("patient_probes")
def test_so_does_a_worker_in_transactions(downstream: Downstream, sqlite_url: str) -> None:
    def runner(_task: Task, _connection: sa.Connection) -> str:
        return downstream.call()

    with Queue.sql(sqlite_url, max_age_seconds=None, order="fifo", backoff=Backoff(0.01, 0.01)) as queue:
        queue.create_table()
        fill(queue)
        options: Any = {"transaction": True, "concurrency": 1, "poll_seconds": 0.01}
        with InThread(Worker(queue, runner, **options)) as work:
            wait_until(lambda: downstream.calls >= OPEN_AFTER + 2)
            assert work.worker.status().slowed
            assert downstream.calls <= OPEN_AFTER + 50
            downstream.up.set()
            wait_until(lambda: queue.stats().success == TASKS)


def reject(_task: Task) -> None:
    raise Reject("wrong")


def fail(_task: Task) -> None:
    raise OSError("no answer")


@pytest.mark.parametrize(
    ("runner", "queue_options", "task_options"),
    [
        (fail, {}, {}),  # with a max age, the deadline is the budget
        (fail, {"max_age_seconds": None}, {"max_age_seconds": 3600}),
        (reject, {"max_age_seconds": None}, {}),  # verdicts about tasks, not failures of the downstream
    ],
)
def test_what_does_not_slow_a_worker_down(
    runner: Callable[[Task], Any], queue_options: dict[str, Any], task_options: dict[str, Any]
) -> None:
    queue = Queue.memory(max_attempts=1, **queue_options)
    fill(queue, **task_options)
    report = Worker(queue, runner, concurrency=CONCURRENCY, poll_seconds=0.01, idle_exit_seconds=0.05).run()
    assert report.outcomes[Outcome.FAILED] == TASKS


@pytest.mark.usefixtures("patient_probes")
def test_an_observer_without_the_method_is_not_asked(downstream: Downstream) -> None:
    queue = Queue.memory(max_age_seconds=None, backoff=Backoff(0.01, 0.01))
    fill(queue)
    observer: Any = Quiet()
    with InThread(Worker(queue, downstream.call, poll_seconds=0.01, observer=observer)) as work:
        wait_until(lambda: work.worker.status().slowed)
        downstream.up.set()
        wait_until(lambda: queue.stats().success == TASKS)


class Slowings(Observer):
    """An observer that keeps its reports of slow workers; a broken one fails."""

    def __init__(self, *, broken: bool = False) -> None:
        self.told: list[tuple[str, bool]] = []
        self._broken = broken

    def slowed(self, queue: str, *, opened: bool) -> None:
        self.told.append((queue, opened))
        if self._broken:
            raise OSError("no answer")


@pytest.mark.parametrize("broken", ["neither", "observer", "telemetry"])
def test_an_observer_and_telemetry_are_both_told(broken: str) -> None:
    observer, telemetry = Slowings(broken=broken == "observer"), Slowings(broken=broken == "telemetry")
    ObserverBesideTelemetry(observer, telemetry).slowed("mail", opened=True)
    assert observer.told == telemetry.told == [("mail", True)]


def test_telemetry_is_told_beside_an_observer_without_the_method() -> None:
    telemetry = Slowings()
    ObserverBesideTelemetry(Quiet(), telemetry).slowed("mail", opened=False)
    assert telemetry.told == [("mail", False)]


def test_a_worker_goes_on_with_the_breaker_of_the_one_before(
    downstream: Downstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "PROBE_BACKOFF", Backoff(3600, 3600))
    queue = Queue.memory(name="mail", max_age_seconds=None, order="fifo", backoff=Backoff(0.01, 0.01))
    other = Queue.memory(name="letters", max_age_seconds=None)
    fill(queue)
    breakers: dict[str, RunBreaker] = {}
    first, second, elsewhere = (
        Worker(each, downstream.call, poll_seconds=0.01) for each in (queue, queue, other)
    )
    for worker in (first, second, elsewhere):
        go_on_with(worker, breakers)
    with InThread(first):
        wait_until(lambda: first.status().slowed)
    calls = downstream.calls
    with InThread(second), InThread(elsewhere):
        wait_until(lambda: second.status().slowed)
        assert downstream.calls == calls
        wait_until(lambda: elsewhere.status().turned_seconds > 0)
        assert not elsewhere.status().slowed


def test_a_worker_is_shown_with_its_queue_and_without_secrets() -> None:
    queue = Queue.sql("postgresql://app:hunter2@db:5432/shop", name="mail")
    assert repr(Worker(queue, print)) == "Worker(Queue('mail', postgresql://app@db:5432/shop#tasks))"
