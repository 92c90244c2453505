"""Paged reads and batched writes are complete and in order; here pages have two entries."""

from dataclasses import replace
from typing import Any, Final

import pytest

from freshq import GroupRule, GroupRules, Order, PutOutcome, Queue
from freshq.queue import lines, reading
from freshq.queue.core import core_of
from freshq.stores import memory
from freshq.stores.base import NO_VALUES
from freshq.stores.memory import MemoryQueue, StateCounts
from freshq.stores.sql import counts, tasks
from tests.conftest import DATABASES, StoreUnderTest
from tests.support.readings import ids, known
from tests.support.statements import database_of

SMALL: Final = 2
PAGES: Final = {
    memory: ("CHUNK_TASKS", "COMING_PAGE", "DEAD_PAGE", "LOOKED_TASKS"),
    tasks: ("BATCH_ROWS", "DEAD_ROWS", "SCAN_ROWS"),
    counts: ("FEW_LINES",),
    lines: ("WINDOW_LINES",),
    reading: ("MAX_LINES", "PAGE_LINES"),
}
on_tables = pytest.mark.parametrize("store", DATABASES, indirect=True)
on_each_store = pytest.mark.parametrize("store", ["memory", *DATABASES], indirect=True)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in PAGES.items():
        for name in names:
            monkeypatch.setattr(module, name, SMALL)


def put(queue: Queue, *task_ids: str, **options: Any) -> list[PutOutcome]:
    """Put tasks in one call; return the fate of each."""
    found = queue.put_many([{"payload": each, "task_id": each} for each in task_ids], **options)
    return [receipt.outcome for receipt in found]


@on_each_store
def test_each_task_of_a_put_learns_its_outcome(queue: Queue) -> None:
    put(queue, "b", "e")
    created, duplicate = PutOutcome.CREATED, PutOutcome.DUPLICATE
    assert put(queue, "a", "b", "c", "d", "e") == [created, duplicate, created, created, duplicate]
    assert sorted(task.task_id for task in queue.list()) == ["a", "b", "c", "d", "e"]
    assert [task.task_id for task in core_of(queue).store.scan(queue.name, "b")] == ["c", "d", "e"]


@on_tables
def test_so_does_each_of_a_transaction(queue: Queue) -> None:
    put(queue, "b", "e")
    with database_of(queue).engine.begin() as connection:
        outcomes = put(queue, "a", "b", "c", "d", "e", connection=connection)
    assert outcomes == [PutOutcome.CREATED if each in "acd" else PutOutcome.DUPLICATE for each in "abcde"]


@on_each_store
def test_dead_letters_are_listed_to_the_end(store: StoreUnderTest, queue: Queue) -> None:
    put(queue, "a", "b", "c", "d", "e")
    for task_id in "abcde":
        queue.cancel(task_id, dead=True)
        store.clock.advance(1)
    dead = [*core_of(queue).store.dead(queue.name)]
    assert [task.task_id for task in dead] == ["e", "d", "c", "b", "a"]


@on_each_store
@pytest.mark.parametrize("order", [Order.LIFO, Order.FIFO])
def test_claims_take_from_the_whole_line(store: StoreUnderTest, order: Order) -> None:
    queue = store.queue(order=order)
    for task_id in "cafebd":
        put(queue, task_id)
        store.clock.advance(1)
    queue.put("short", task_id="short", max_age_seconds=1)
    store.clock.advance(2)
    expected = [*"cafebd"] if order is Order.FIFO else [*"dbefac"]
    assert ids(queue.claim(limit=4)) == expected[:4]
    assert ids(queue.claim(limit=4)) == expected[4:]


@on_each_store
@pytest.mark.parametrize("limited", [False, True])
def test_many_groups_have_their_turns_level_by_level(store: StoreUnderTest, *, limited: bool) -> None:
    rules = GroupRules(GroupRule(max_running=2)) if limited else GroupRules()
    queue = store.queue(groups=rules)
    queue.create_table()
    for level in (0, 3):
        for group in "abcde":
            queue.put_many([{"payload": level, "group": f"{level}{group}", "priority": level}] * 2)
    for level in (3, 0):
        claimed = [(claim.task.payload, claim.task.group) for _ in range(10) for claim in queue.claim()]
        assert sorted(claimed) == [(level, f"{level}{group}") for group in "abcde" for _ in range(2)]
    assert queue.claim() == []


@on_each_store
def test_of_many_groups_each_is_claimed_up_to_its_limit(store: StoreUnderTest) -> None:
    queue = store.queue(groups=GroupRules(GroupRule(max_running=1)))
    queue.create_table()
    queue.put_many(
        [{"payload": n, "group": group, "task_id": f"{group}{n}"} for n in "123" for group in "abcde"]
    )
    held = {claim.task.group: claim for _ in range(7) for claim in queue.claim()}
    assert sorted(str(group) for group in held) == [*"abcde"]
    queue.cancel("c1" if held["c"].task.task_id != "c1" else "c2")  # of a line that waits
    queue.complete(held["c"])
    assert [claim.task.group for _ in range(3) for claim in queue.claim()] == ["c"]
    queue.put("late", group="f")
    assert [claim.task.group for _ in range(6) for claim in queue.claim()] == ["f"]


def counted(*deadlines: float) -> StateCounts:
    """Return the counts of tasks, each in a group of its own, created at 100, 101 and so on."""
    indexes = MemoryQueue()
    queue = Queue.memory(clock=lambda: 100.0)
    for n, deadline in enumerate(deadlines):
        queue.put(n, task_id=f"t{n}", group=f"g{n}", max_age_seconds=deadline - 100.0)
        indexes.add(replace(known(queue, f"t{n}"), created=100.0 + n))
    return indexes.states


def test_of_many_groups_those_with_the_latest_deadlines_are_counted() -> None:
    now = 100.0
    queue = Queue.memory(clock=lambda: now)
    for n, deadline in enumerate((110.0, 140.0, 120.0, 130.0, 150.0)):
        queue.put(n, group=f"g{n}", max_age_seconds=deadline - now)
        now += 1
    store = core_of(queue).store
    assert reading.count_waiting(store, queue.name, 105.0, 99.0, 1) == {"g4": 1, "g1": 1, "g3": 1}
    assert reading.newest_created(store, queue.name, 135.0, 99.0, 1) == {"g4": [104.0], "g1": [101.0]}
    assert reading.newest_created(store, queue.name, 105.0, 101.0, 1) == {"g4": [104.0], "g3": [103.0]}


@pytest.mark.parametrize(("number", "bounds"), [(2, ()), (3, ("at least", "at most"))])
def test_ages_are_bounds_if_more_wait_than_are_looked_at(number: int, bounds: tuple[str, ...]) -> None:
    stats = counted(*(200.0 + n for n in range(number))).stats(110.0, 99.0)
    assert (stats.pending, stats.oldest_pending_seconds) == (number, 10.0)
    assert stats.newest_pending_seconds == 11.0 - number
    ages = dict(zip(("oldest_pending_seconds", "newest_pending_seconds"), bounds, strict=False))
    assert stats.bounded == {"shed_by_reason": "not counted", **NO_VALUES, **ages}
