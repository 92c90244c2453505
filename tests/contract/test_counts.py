"""Exact and approximate counts agree, and an unknown count is not shown as a number."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from freshq import Order, Queue
from freshq.cli.commands.watch import Watcher, frame
from freshq.cli.output import Output
from freshq.policy.backlog_limit import BacklogLimit
from freshq.queue.reading import SLACK_IDS
from freshq.stores.base import Stats
from tests.conftest import StoreUnderTest
from tests.support.readings import ids

STATES = ("pending", "delayed", "taken", "success", "failure", "cancelled", "shed")


def overloaded(store: StoreUnderTest) -> Queue:
    """Return a queue with tasks in every state, under three times its load."""
    queue = store.queue(max_age_seconds=10)
    for _second in range(15):
        queue.put_many([{"payload": number} for number in range(3)])
        (claim,) = queue.claim()
        queue.complete(claim)
        store.clock.advance(1)
    queue.put("own deadline", max_age_seconds=2)
    queue.put("later", delay_seconds=5)
    queue.cancel(queue.put("unwanted").task_id)
    store.clock.advance(3)
    (claim,) = queue.claim()
    queue.fail(claim, error="no")
    queue.claim()
    return queue


def test_both_counts_agree_on_what_the_approximate_one_counts(store: StoreUnderTest) -> None:
    queue = overloaded(store)
    exact, approximate = queue.stats(), queue.stats(approximate=True)
    for state in STATES:
        bound, value = approximate.bounded.get(state), getattr(approximate, state)
        if bound is None:
            assert value == getattr(exact, state), state
        elif bound == "at least":
            assert value <= getattr(exact, state), state
        elif bound == "at most":
            assert value >= getattr(exact, state), state
    assert approximate.shed > 0
    assert approximate.pending == exact.pending


def test_exact_counts_are_those_of_reading_every_task(store: StoreUnderTest) -> None:
    """Tasks in every state, shed for every reason, some put with a longer max age than the queue's."""
    queue = overloaded(store)
    reasons: set[str] = set()
    impatient = store.queue(name="impatient", max_age_seconds=4, order=Order.FIFO, reserve=3)
    full = store.queue(name="full", backlog=BacklogLimit(6))
    for second in range(20):
        queue.put("more", delay_seconds=2)
        for each in (impatient, full):
            each.put_many([{"payload": "more", "delay_seconds": second % 3}] * 4)
            each.claim()
        store.clock.advance(1)
        if second % 5 == 0:
            impatient.admin.recover()
        for each in (queue, impatient, full):
            read_all, counted = each.stats(ids=1), each.stats()
            # On PostgreSQL, dead rows are counted late.
            assert replace(read_all, ids={}, dead_rows=None, oldest_snapshot_seconds=None) == replace(
                counted, dead_rows=None, oldest_snapshot_seconds=None
            )
            reasons |= read_all.shed_by_reason.keys()
    assert reasons >= {"expired", "reserve", "overflow"}


def test_the_law_holds_for_every_state(store: StoreUnderTest) -> None:
    """Three tasks a second for 15 s, and three more."""
    stats = overloaded(store).stats()
    assert sum(getattr(stats, state) for state in STATES) == 48
    assert stats.delayed == 1
    numbers = {name for name, value in asdict(Stats()).items() if value == 0}
    assert numbers == set(STATES), "a state that the law does not have"


def test_the_first_ids_of_an_adaptive_queue_are_the_newest(store: StoreUnderTest) -> None:
    queue = store.queue(order=Order.ADAPTIVE)
    for task_id in ("old", "new"):
        queue.put("work", task_id=task_id)
        store.clock.advance(1)
    assert queue.stats(ids=2).ids["pending"] == ("new", "old")


@pytest.mark.parametrize("order", [Order.LIFO, Order.FIFO])
def test_the_first_ids_of_each_state(store: StoreUnderTest, order: Order) -> None:
    queue = store.queue(order=order, max_age_seconds=100)
    for number in range(8):
        queue.put("work", task_id=f"t{number}", priority=number % 2)
        store.clock.advance(1)
    held = ids(queue.claim(limit=2))
    queue.cancel("t0")
    queue.cancel("t2", dead=True)
    store.clock.advance(1)
    queue.cancel("t4", dead=True)
    for seconds in (9, 5):
        queue.put("later", task_id=f"in {seconds}", delay_seconds=seconds)
    waiting = [each.task.task_id for each in queue.peek(10)]
    found = queue.stats(ids=2).ids
    assert {state: list(first) for state, first in found.items()} == {
        "pending": waiting[:2],
        "delayed": ["in 5", "in 9"],
        "taken": sorted(held),
        "success": [],
        "failure": ["t4", "t2"],
        "cancelled": ["t0"],
        "shed": [],
    }
    assert queue.stats(ids=1_000).ids["pending"] == tuple(waiting[:3])
    assert queue.stats().ids == {}


def test_the_ids_of_many_tasks_are_found_in_bounded_memory() -> None:
    queue = Queue.memory(order=Order.FIFO)
    queue.put_many([{"payload": 0, "task_id": f"t{n:05}"} for n in range(3 * SLACK_IDS)])
    assert queue.stats(ids=3).ids["pending"] == ("t00000", "t00001", "t00002")


def test_watch_shows_what_stats_counts(store: StoreUnderTest, capsys: pytest.CaptureFixture[str]) -> None:
    queue = overloaded(store)
    output = Output(as_json=False)
    output.console.print(frame(Watcher(queue).snapshot(), 100, 40))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = {row[-3] if row[-1] == "least" else row[-1] for row in rows if "shed" in row}
    exact, (shed,) = queue.stats(), [int(row[row.index("shed") + 1]) for row in rows if "shed" in row]
    assert 0 < shed <= exact.shed, shown
    assert any(row[-2:] == ["waiting", str(exact.pending)] for row in rows)


def test_dead_rows_are_shown_where_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).stats(Stats(dead_rows=3_000, oldest_snapshot_seconds=60.0), "default", paused=False)
    Output(as_json=False).stats(Stats(), "default", paused=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = [line[1:-1] for line in lines if "dead" in line or "snapshot" in line]
    assert ["dead", "rows", "│", "3,000"] in shown
    assert len([line for line in shown if "rows" in line or "snapshot" in line]) == 2


def test_what_is_not_counted_is_not_shown_as_zero(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).stats(Stats(bounded={"shed": "not counted"}), "default", paused=False)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "shed" in line]
    assert "0" not in line

    class NotCounting:
        """A queue of a store that does not count shed tasks."""

        def __init__(self) -> None:
            self._queue = Queue.memory()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._queue, name)

        def stats(self, *, approximate: bool) -> Stats:
            assert approximate
            return Stats(bounded={"shed": "not counted"})

    queue: Any = NotCounting()
    Output(as_json=False).console.print(frame(Watcher(queue).snapshot(), 100, 40))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "shed" in line]
    assert "not counted" in line
    assert "shed           0" not in line
