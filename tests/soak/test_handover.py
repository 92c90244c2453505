"""A process that has a duty is killed or stopped for longer than its lease, and another takes over."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Self

import pytest
import sqlalchemy as sa

from freshq import Queue, TaskStatus
from freshq.feeds.schedules import Every
from freshq.queue.core import core_of
from freshq.queue.upkeep import RECORD
from tests.soak.handover import PATIENT, WEEK_SECONDS, ticks
from tests.support.machine import on_machine, set_ahead
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import counts, known, within_seconds
from tests.support.work_process import APP, Work

IS_LONG: Final = "FRESHQ_SOAK_SECONDS" in os.environ
HANDOVERS: Final = 30 if IS_LONG else 4
TICK_SECONDS: Final = "0.25"
EVERY_TICK: Final = "10000"
# Ticks between two handovers.
TICKS: Final = 4


class Node:
    """A process of `tests/soak/handover.py`, in a `with` block."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.handover", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        assert self._process.stdout is not None
        self.holder = self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def tell(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """Return the address of an empty queue."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    engine: sa.Engine = request.getfixturevalue("postgres_engine")
    return engine.url.render_as_string(hide_password=False)


def upkeep_lease(queue: Queue) -> Mapping[str, Any]:
    """Return the lease of the process that does the upkeep; empty if none has done any."""
    record = core_of(queue).store.read_record(queue.name, RECORD)
    return {} if record is None else record.values


def holder(queue: Queue) -> str | None:
    """Return the name of the process that does the upkeep."""
    return upkeep_lease(queue).get("holder")


def lose_a_lease(queue: Queue, task_id: str) -> None:
    """Let a lease expire that only upkeep recovers."""
    queue.put("work", task_id=task_id)
    # A claim that takes more than a tenth of its lease gives the task back.
    assert within_seconds(PATIENCE_SECONDS, lambda: bool(queue.claim(lease_seconds=1.0)))


def comes_back(queue: Queue, task_id: str) -> bool:
    return within_seconds(PATIENCE_SECONDS, lambda: known(queue, task_id).status is TaskStatus.PENDING)


def test_upkeep_goes_on_when_its_process_is_killed(url: str) -> None:
    with (
        closing(Queue.sql(url, max_age_seconds=WEEK_SECONDS, **PATIENT)) as queue,
        Node("upkeep", url, "default") as first,
    ):
        lose_a_lease(queue, "a")
        assert comes_back(queue, "a")
        assert holder(queue) == first.holder
        with Node("upkeep", url, "default") as second:
            first.kill()
            queue.cancel("a")
            lose_a_lease(queue, "b")
            assert comes_back(queue, "b")
            assert holder(queue) == second.holder


# Not on SQLite, whose only lock a process may hold when it is stopped.
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_process_that_slept_longer_than_its_lease_leaves_the_upkeep_to_the_other(url: str) -> None:
    with (
        closing(Queue.sql(url, max_age_seconds=WEEK_SECONDS, **PATIENT)) as queue,
        Node("upkeep", url, "default") as first,
    ):
        assert within_seconds(PATIENCE_SECONDS, lambda: holder(queue) == first.holder)
        with Node("upkeep", url, "default") as second:
            first.tell(signal.SIGSTOP)
            assert within_seconds(PATIENCE_SECONDS, lambda: holder(queue) == second.holder)
            first.tell(signal.SIGCONT)
            for number in range(3):
                until = upkeep_lease(queue)["until"]
                lose_a_lease(queue, f"{number}")
                assert comes_back(queue, f"{number}")
                # If the machine stalls the second one for longer than its lease, the first may follow.
                assert holder(queue) == second.holder or queue.admin.now() > until
                queue.cancel(f"{number}")
            second.kill()
            assert within_seconds(PATIENCE_SECONDS, lambda: holder(queue) == first.holder)


class Consumer:
    """Counts the ticks that fired."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.fired: Counter[str] = Counter()

    def has(self, number: int) -> bool:
        """Take the available tasks; return whether this number of ticks fired."""
        for claim in self._queue.claim(100):
            self.fired[claim.task.task_id] += 1
            self._queue.complete(claim)
        return self.fired.total() >= number


def test_every_tick_fires_once_whichever_process_dies_or_sleeps(url: str) -> None:
    """Two processes fire one schedule; by turns one of them is killed, or stopped for some ticks."""
    schedule = ["schedule", url, "default", TICK_SECONDS, EVERY_TICK]
    with closing(Queue.sql(url, max_age_seconds=WEEK_SECONDS, **PATIENT)) as queue:
        consumer, nodes = Consumer(queue), [Node(*schedule), Node(*schedule)]
        try:
            for handover in range(HANDOVERS):
                assert within_seconds(PATIENCE_SECONDS, more(consumer))
                victim = handover % 2
                if handover // 2 % 2 and not url.startswith("sqlite"):
                    nodes[victim].tell(signal.SIGSTOP)
                    assert within_seconds(PATIENCE_SECONDS, more(consumer))
                    nodes[victim].tell(signal.SIGCONT)
                else:
                    nodes[victim].kill()
                    assert within_seconds(PATIENCE_SECONDS, more(consumer))
                    nodes[victim] = Node(*schedule)
            assert within_seconds(PATIENCE_SECONDS, more(consumer))
        finally:
            for node in nodes:
                node.kill()
        consumer.has(0)
    assert set(consumer.fired.values()) == {1}
    assert sorted(consumer.fired) == between(min(consumer.fired), max(consumer.fired))


def more(consumer: Consumer) -> Callable[[], bool]:
    """Return whether some more ticks fired than now."""
    until = consumer.fired.total() + TICKS
    return lambda: consumer.has(until)


def between(first: str, last: str) -> list[str]:
    """Return the task ids of all ticks from one to another."""
    schedule = ticks(TICK_SECONDS, EVERY_TICK)
    begin = time.time() - WEEK_SECONDS / 7
    named = (schedule.task_id(tick) for tick in Every(float(TICK_SECONDS)).ticks(begin))
    from_first = itertools.dropwhile(lambda each: each != first, named)
    return [*itertools.takewhile(lambda each: each != last, from_first), last]


HOUR_SECONDS: Final = 3600.0
# Duration of the machine's suspension.
NIGHT_SECONDS: Final = 3 * HOUR_SECONDS
SLOW_TICK_SECONDS: Final = 5.0


@pytest.fixture
def laptop(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """Return the clock of a machine, and the environment of its processes."""
    clock = tmp_path / "clock"
    set_ahead(clock, 0.0)
    return clock, os.environ | on_machine(clock=clock)


def test_a_suspended_laptop(tmp_path: Path, sqlite_url: str, laptop: tuple[Path, dict[str, str]]) -> None:
    """It sleeps for three hours while a task runs, others wait, and a schedule is due every five seconds."""
    clock, environment = laptop
    (tmp_path / "app.py").write_text(APP)
    ahead = [0.0]
    at_hand = {"clock": lambda: time.time() + ahead[0], "max_age_seconds": 600, **PATIENT}
    schedule = ["schedule", sqlite_url, "ticks", str(SLOW_TICK_SECONDS), "1"]
    with (
        closing(Queue.sql(sqlite_url, **at_hand | {"lease_seconds": 5})) as queue,
        closing(Queue.sql(sqlite_url, name="ticks", **at_hand | {"max_age_seconds": WEEK_SECONDS})) as fired,
        Node(*schedule, **environment) as scheduler,
        Work(
            tmp_path, f"{sqlite_url}?max_age_seconds=600&lease_seconds=5", "--concurrency", "1", **environment
        ) as work,
    ):
        queue.put("waits", task_id="running")
        assert within_seconds(PATIENCE_SECONDS, (tmp_path / "started-running").exists)
        queue.put_many([{"payload": "waits", "task_id": f"waiting-{number}"} for number in range(3)])
        assert within_seconds(PATIENCE_SECONDS, lambda: fired.stats().pending >= 1)
        for each in (scheduler.tell, work.tell):
            each(signal.SIGSTOP)
        before = fired.stats().pending
        ahead[0] = NIGHT_SECONDS
        set_ahead(clock, ahead[0])
        for each in (scheduler.tell, work.tell):
            each(signal.SIGCONT)
        (tmp_path / "release").touch()
        queue.put("new", task_id="new")
        assert within_seconds(PATIENCE_SECONDS, lambda: known(queue, "new").status is TaskStatus.SUCCESS)
        assert within_seconds(PATIENCE_SECONDS, lambda: fired.stats().pending >= before + 2)
        after = fired.stats().pending
        assert work.end() == 0
        left = counts(queue.stats())
    assert [path.name for path in tmp_path.glob("started-*")] == ["started-running"]
    # The sleeping run ended, or its task was shed if its lease had expired.
    assert left in ({"success": 2, "shed": 3}, {"success": 1, "shed": 4})
    # Of the missed ticks only the last fired, then one every five seconds.
    assert after - before < NIGHT_SECONDS / SLOW_TICK_SECONDS / 10
