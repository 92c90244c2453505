"""Looking without taking: the order of the claims that follow, on every store."""

from typing import Any

import pytest
import sqlalchemy as sa
from benchmarks.capacity import metered

from freshq import Order, Queue
from freshq.model import WaitsFor
from freshq.stores.sql import SqlStore
from tests.conftest import StoreUnderTest
from tests.support.readings import ids
from tests.support.statements import sent

GROUPS = (None, "a", "b")


def put_mixed(store: StoreUnderTest, queue: Queue) -> int:
    """Put tasks of several priorities and groups, most of them in one group; return how many."""
    tasks: list[dict[str, Any]] = []
    for n in range(24):
        group = GROUPS[n % 3] if n < 12 else "a"
        tasks.append({"payload": n, "task_id": f"t{n:02}", "priority": n % 2 * 5, "group": group})
    for task in tasks:
        queue.put(**task)
        store.clock.advance(0.25)
    return len(tasks)


def peeked(queue: Queue, limit: int) -> list[str]:
    return [each.task.task_id for each in queue.peek(limit)]


@pytest.mark.parametrize("order", [Order.LIFO, Order.FIFO])
class TestOrder:
    def test_it_is_the_order_of_one_claim(self, store: StoreUnderTest, order: Order) -> None:
        queue = store.queue(order=order)
        number = put_mixed(store, queue)
        shown = peeked(queue, number)
        assert peeked(queue, number) == shown  # a look changes nothing
        assert peeked(queue, 7) == shown[:7]
        assert ids(queue.claim(limit=number)) == shown
        assert len(shown) == number

    def test_it_is_the_order_of_claims_one_by_one(self, store: StoreUnderTest, order: Order) -> None:
        queue = store.queue(order=order)
        number = put_mixed(store, queue)
        first = ids(queue.claim(limit=5))  # groups have had turns
        shown = peeked(queue, number)
        assert set(first).isdisjoint(shown)
        for place in range(6):
            assert ids(queue.claim()) == [shown[place]]
            assert peeked(queue, number) == shown[place + 1 :]


class TestReasons:
    def test_a_task_of_another_group_goes_before_a_newer_one(self, store: StoreUnderTest) -> None:
        queue = store.queue()
        for name, group in (("old", "quiet"), ("new", "loud"), ("newer", "loud")):
            queue.put(None, task_id=name, group=group)
            store.clock.advance(1)
        shown = {each.task.task_id: each.waits_for for each in queue.peek()}
        assert list(shown)[-1] in {"new", "old"}
        before = list(shown)[: list(shown).index("new")]
        assert shown["new"] == (WaitsFor.TURN if "old" in before else None)
        assert shown["old"] is None

    def test_delayed_tasks_come_last_the_next_due_first(self, store: StoreUnderTest) -> None:
        queue = store.queue()
        queue.put(None, task_id="later", delay_seconds=20)
        queue.put(None, task_id="soon", delay_seconds=10)
        queue.put(None, task_id="now")
        queue.claim()
        queue.put(None, task_id="other")
        shown = [(each.task.task_id, each.waits_for) for each in queue.peek()]
        assert shown == [("other", None), ("soon", WaitsFor.DUE), ("later", WaitsFor.DUE)]
        assert peeked(queue, 2) == ["other", "soon"]

    def test_what_is_paused_waits_for_that(self, store: StoreUnderTest) -> None:
        queue = store.queue()
        queue.put(None, task_id="now")
        queue.put(None, task_id="later", delay_seconds=10)
        queue.pause()
        assert [each.waits_for for each in queue.peek()] == [WaitsFor.RESUME, WaitsFor.DUE]

    def test_stale_tasks_are_not_shown(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=100)
        queue.put(None, task_id="old")
        store.clock.advance(90)
        queue.put(None, task_id="short", max_age_seconds=5)
        queue.put(None, task_id="fresh")
        store.clock.advance(10)
        assert peeked(queue, 10) == ["fresh"]


def test_a_look_leaves_the_tasks_as_they_are(store: StoreUnderTest) -> None:
    queue = store.queue()
    put_mixed(store, queue)
    before = list(queue.list())
    queue.peek(24)
    assert list(queue.list()) == before


def put_many(queue: Queue, number: int) -> None:
    queue.put_many([{"payload": n, "group": GROUPS[n % 3]} for n in range(number)])


@pytest.mark.usefixtures("read_once")
def test_on_dynamodb_a_look_reads_as_much_however_much_waits(table_store: StoreUnderTest) -> None:
    assert table_store.client is not None
    queue = table_store.queue()
    seen = []
    for number in (60, 240):
        put_many(queue, number)
        queue.peek(10)  # the reads that a process makes once
        with metered(table_store.client) as meter:
            assert len(queue.peek(10)) == 10
        seen.append(meter.calls)
        assert meter.write_units == 0
    assert seen[0] == seen[1]
    assert seen[0]["BatchGetItem"] == 1
    assert seen[0].total() <= 3 + len(GROUPS)


def test_shards_are_merged_in_the_order_of_claims(table_store: StoreUnderTest) -> None:
    queue = table_store.queue(shards=3)
    put_mixed(table_store, queue)
    shown = peeked(queue, 24)
    assert len(shown) == 24
    assert ids(queue.claim(limit=24)) == shown


def test_on_sql_a_look_sends_as_much_however_much_waits(sqlite_engine: sa.Engine) -> None:
    store = StoreUnderTest("sqlite", lambda _shards: SqlStore(sqlite_engine))
    queue = store.queue()
    seen = []
    for number in (60, 240):
        put_many(queue, number)
        queue.peek(10)  # the reads that a process makes once
        with sent(queue) as statements:
            assert len(queue.peek(10)) == 10
        seen.append(len(statements))
    assert seen[0] == seen[1] <= 3 + 2 * len(GROUPS)


def test_of_very_many_groups_it_shows_some_and_the_next_claims_go_on(store: StoreUnderTest) -> None:
    queue = store.queue()
    queue.put_many([{"payload": None, "task_id": f"{n:03}", "group": f"{n:03}"} for n in range(150)])
    shown = peeked(queue, 50)
    assert len(set(shown)) == 50
    assert ids(queue.claim(limit=50)) == shown
    again = peeked(queue, 50)
    assert len(set(again) - set(shown)) == 50
