"""Prefetched tasks: they wait for a slot for a moment, and otherwise return to their lines unharmed."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from freshq import Busy, Handlers, Queue, Task, Worker
from freshq.policy.limits import ConcurrencyLimit, Prefetch, SharedBucket
from freshq.policy.retry import Backoff
from freshq.telemetry import Outcome
from freshq.worker import executor, loop, settle
from tests.conftest import Clock
from tests.support.patience import PATIENCE_SECONDS
from tests.support.worker_threads import InThread, Outage, Quiet, lease_of, wait_until

IDS = ("a", "b", "c", "d")


class Fixed(Prefetch):
    """Prefetches four tasks, until some had to be given back."""

    tasks = 4

    def limit(self, now: float) -> int:
        del now
        return self.tasks

    def waited_too_long(self) -> None:
        self.tasks = 0


@pytest.fixture(autouse=True)
def _prefetches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make workers prefetch however slow the machine is, and let tasks wait indefinitely."""
    monkeypatch.setattr(executor, "Prefetch", Fixed)
    monkeypatch.setattr(executor, "MAX_WAIT_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(loop, "BUSY_BACKOFF", Backoff(PATIENCE_SECONDS, PATIENCE_SECONDS))
    monkeypatch.setattr(settle, "SETTLE_BACKOFF", Backoff(0.02, 0.05))


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give tasks back after the usual time."""
    monkeypatch.setattr(executor, "MAX_WAIT_SECONDS", 0.01)


@pytest.fixture
def store() -> Outage:
    return Outage()


@pytest.fixture
def queue(store: Outage, clock: Clock) -> Queue:
    return Queue(store, order="fifo", clock=clock, lease_seconds=20, max_age_seconds=15)


class Blocking(InThread):
    """A worker with one slot, whose run of a task with the payload "slow" lasts until it is released."""

    def __init__(self, queue: Queue, **options: Any) -> None:
        self.started, self.observer = list[str](), Quiet()
        options = {"concurrency": 1, "poll_seconds": 0.01, **options}
        super().__init__(Worker(queue, self.run, observer=self.observer, **options))

    def run(self, task: Task) -> None:
        self.started.append(task.task_id)
        if task.payload == "slow":
            assert self.release.wait(PATIENCE_SECONDS)
        if task.payload == "busy":
            raise Busy


def put(queue: Queue, first: str = "slow") -> None:
    """Put four tasks: the first with this payload, the others end immediately."""
    queue.put_many([{"payload": first if task_id == "a" else "quick", "task_id": task_id} for task_id in IDS])


@pytest.fixture
def blocked(queue: Queue) -> Iterator[Blocking]:
    """Yield a worker that runs a task, and has prefetched three."""
    put(queue)
    with Blocking(queue) as work:
        wait_until(lambda: work.started == ["a"])
        yield work


def attempts(queue: Queue) -> list[int]:
    tasks = [queue.get(task_id) for task_id in IDS]
    return [task.attempts for task in tasks if task]


def test_prefetched_tasks_wait_for_the_slot_and_run_in_order(blocked: Blocking, queue: Queue) -> None:
    queue.put("quick", task_id="e")  # may be claimed in the meantime: at most four wait
    wait_until(lambda: queue.stats().taken == 5)
    queue.put("quick", task_id="f")
    assert (queue.stats().pending, blocked.worker.status().running, blocked.started) == (1, 1, ["a"])
    blocked.release.set()
    wait_until(lambda: queue.stats().success == 6)
    report = blocked.ended()
    assert blocked.started == ["a", "b", "c", "d", "e", "f"]
    assert report.claimed == report.outcomes[Outcome.SUCCEEDED] == sum(report.outcomes.values()) == 6


@pytest.mark.usefixtures("soon")
def test_tasks_behind_a_long_run_return_for_other_workers_and_are_counted(queue: Queue) -> None:
    put(queue)
    with Blocking(queue) as work:
        wait_until(lambda: queue.stats().pending == 3)
        assert (attempts(queue), queue.stats().taken) == ([1, 0, 0, 0], 1)
        with Blocking(queue) as other:
            wait_until(lambda: queue.stats().success == 3)
        assert other.started == ["b", "c", "d"]
        assert attempts(queue) == [1, 1, 1, 1]
        work.release.set()
        report = work.ended()
    assert (report.outcomes[Outcome.GIVEN_BACK], report.outcomes[Outcome.SUCCEEDED]) == (3, 1)
    assert report.claimed == sum(report.outcomes.values()) == len(work.observer.ages)
    given_back = [(each, Outcome.GIVEN_BACK, "no slot was free in time") for each in "bcd"]
    assert work.observer.settlements == [*given_back, ("a", Outcome.SUCCEEDED, None)]


def test_a_drain_returns_them_at_once(blocked: Blocking, queue: Queue) -> None:
    blocked.worker.stop()
    wait_until(lambda: queue.stats().pending == 3)
    assert attempts(queue) == [1, 0, 0, 0]
    blocked.release.set()
    report = blocked.ended()
    assert (blocked.started, report.unfinished) == (["a"], [])
    assert (report.outcomes[Outcome.GIVEN_BACK], report.outcomes[Outcome.SUCCEEDED]) == (3, 1)
    assert {why for *_, why in blocked.observer.settlements} == {"the worker ends", None}


def test_an_end_at_once_returns_them_beside_the_running_task(blocked: Blocking, queue: Queue) -> None:
    blocked.worker.stop_at_once()
    report = blocked.ended()
    assert (queue.stats().pending, attempts(queue)) == (4, [0, 0, 0, 0])
    assert (report.given_back, report.outcomes[Outcome.GIVEN_BACK], blocked.started) == (["a"], 4, ["a"])


def test_a_busy_downstream_gets_none_of_them(queue: Queue) -> None:
    put(queue, "busy")
    with Blocking(queue) as work:
        wait_until(lambda: work.worker.status().outcomes[Outcome.RELEASED] == 1)
        wait_until(lambda: queue.stats().pending == 4)
        report = work.ended()
    assert (work.started, attempts(queue)) == (["a"], [0, 0, 0, 0])
    assert (report.outcomes[Outcome.GIVEN_BACK], report.outcomes[Outcome.RELEASED]) == (3, 1)
    assert [why for *_, why in work.observer.settlements[1:]] == ["the downstream is busy"] * 3


def test_their_leases_are_extended_and_stale_ones_are_not_started_but_counted_as_shed(
    blocked: Blocking, queue: Queue, clock: Clock
) -> None:
    clock.advance(15)
    wait_until(lambda: all(lease_of(queue, each) == clock.now + 20 for each in IDS))
    blocked.release.set()
    wait_until(lambda: queue.stats().shed == 3)
    report = blocked.ended()
    assert (blocked.started, attempts(queue)) == (["a"], [1, 0, 0, 0])
    assert report.outcomes[Outcome.SHED] == 3
    assert report.claimed == sum(report.outcomes.values()) == 4


@pytest.mark.usefixtures("soon")
def test_they_return_after_an_outage(queue: Queue, store: Outage) -> None:
    put(queue)
    take = store.take

    def take_and_go_down(request: Any, choice: Any) -> list[Task]:
        tasks = take(request, choice)
        store.down.set()
        return tasks

    store.take = take_and_go_down  # type: ignore[method-assign]
    with Blocking(queue) as work:
        wait_until(lambda: store.unchanged >= {"b", "c", "d"})
        store.take = take  # type: ignore[method-assign]
        store.down.clear()
        wait_until(lambda: queue.stats().pending == 3)
        assert (work.started, attempts(queue)) == (["a"], [1, 0, 0, 0])


def test_coroutines_occupy_their_slots_while_they_wait(queue: Queue) -> None:
    handlers, started, release = Handlers(), list[str](), asyncio.Event()
    loops = list[asyncio.AbstractEventLoop]()

    @handlers.on("waits")
    async def waits(task: Task) -> None:
        started.append(task.task_id)
        loops.append(asyncio.get_running_loop())
        await release.wait()

    queue.put_many([{"payload": 0, "task_id": task_id, "kind": "waits"} for task_id in "abcdef"])
    with InThread(Worker(queue, handlers, concurrency=2, poll_seconds=0.01)) as work:
        wait_until(lambda: len(loops) == 2)
        wait_until(lambda: queue.stats().taken == 6)
        assert {*started} == {"a", "b"}
        loops[0].call_soon_threadsafe(release.set)
        wait_until(lambda: queue.stats().success == 6)
        assert work.ended().outcomes[Outcome.SUCCEEDED] == 6
    assert sorted(started) == [*"abcdef"]


@pytest.mark.parametrize(
    "options",
    [
        {"rate_per_second": 1000},
        {"limit": ConcurrencyLimit(5, 5)},
        {"shared_bucket": SharedBucket(1000, 100, 100)},
        {"max_run_seconds": 600},
        {"at_most_once": True},
    ],
)
def test_nothing_is_prefetched_where_starts_are_limited(queue: Queue, options: dict[str, Any]) -> None:
    put(queue)
    with Blocking(queue, **options) as work:
        wait_until(lambda: work.started == ["a"])
        assert (queue.stats().pending, work.worker.status().claimed) == (3, 1)


def test_the_newest_task_waits_for_those_prefetched_and_goes_before_all_others(
    store: Outage, clock: Clock
) -> None:
    queue = Queue(store, clock=clock)
    for number in range(6):
        clock.advance(1)
        queue.put("slow" if number == 5 else "quick", task_id=str(number))
    with Blocking(queue) as work:
        wait_until(lambda: work.started == ["5"])
        clock.advance(1)
        queue.put("quick", task_id="new")
        work.release.set()
        wait_until(lambda: queue.stats().success == 7)
    assert work.started == ["5", "4", "3", "2", "1", "new", "0"]
