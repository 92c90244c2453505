"""Attached tables in the order of an attribute of the application."""

from typing import Any

import pytest
from benchmarks.capacity import metered
from local.faults import client_at
from types_boto3_dynamodb import DynamoDBClient

from freshq import AttachedQueue, LeaseLost, Queue, TaskStatus
from freshq.errors import IllegalTransition, PutIncomplete
from freshq.policy.backlog_limit import BacklogLimit
from freshq.policy.order import Order
from freshq.policy.rules import CodelRule
from freshq.stores.dynamodb.attached.attach import Attachment, open_attachment, plan_attachment
from freshq.stores.dynamodb.key import KeyPart
from tests.support.attached import ID, Shipments
from tests.support.readings import counts, ids, known
from tests.support.refusals import refused

PRICES = {"cheap": "-0.5", "fair": "9", "dear": "10.25", "dearest": "1E+30"}
PRICE = KeyPart("price", "N")
DAY = KeyPart("day", "S")


def priced(client: DynamoDBClient, order: Order, prices: dict[str, str], shards: int = 1) -> Shipments:
    """Return an attached table by price, with a record for each price."""
    table = Shipments(client)
    table.create_attached(order=order, shards=shards, order_by=PRICE)
    for name, price in prices.items():
        table.change(name, price={"N": price})
    return table


def put_all(queue: AttachedQueue, names: Any) -> None:
    """Put records in an order that is neither that of their prices nor its reverse."""
    for name in sorted(names):
        queue.put(task_id=name)


@pytest.fixture
def table(client: DynamoDBClient) -> Shipments:
    """Return an attached table by price, the dearest first, with four records."""
    return priced(client, Order.LIFO, PRICES)


@pytest.fixture
def queue(table: Shipments) -> AttachedQueue:
    queue = table.queue()
    put_all(queue, PRICES)
    return queue


DESCENDING = ["dearest", "dear", "fair", "cheap"]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("order", [Order.FIFO, Order.LIFO])
def test_ascending_and_descending(client: DynamoDBClient, order: Order, shards: int) -> None:
    table = priced(client, order, PRICES, shards)
    queue = table.queue()
    put_all(queue, PRICES)
    expected = DESCENDING if order is Order.LIFO else DESCENDING[::-1]
    assert [(each.task.task_id, each.waits_for) for each in queue.peek()] == [
        (name, None) for name in expected
    ]
    assert ids(queue.claim(limit=1) + queue.claim(limit=3)) == expected


def test_text_is_compared_by_its_bytes(client: DynamoDBClient) -> None:
    table = Shipments(client)
    table.create_attached(order_by=DAY, shards=2)
    days = ["2026-01-02", "2026-01-10", "2026-02-01", "ÿ", "\uffee", "\U0001f600"]
    for index, day in enumerate(days):
        table.change(f"r{index}", day={"S": day})
    queue = table.queue()
    put_all(queue, reversed([f"r{index}" for index in range(len(days))]))
    assert ids(queue.claim(limit=9)) == [f"r{index}" for index in range(len(days))]


def test_the_place_stays_through_claims_retries_and_releases(table: Shipments, queue: AttachedQueue) -> None:
    first, second = queue.claim(limit=2)
    table.change("dear", price={"N": "0"})
    queue.retry(second, delay_seconds=10)
    queue.release(first)
    assert ids(queue.claim(limit=2)) == ["dearest", "fair"]
    table.clock.advance(10)
    assert queue.admin.recover() == 1
    (back,) = queue.claim(limit=1)
    assert back.task.task_id == "dear"  # still before the cheap one
    assert back.task.payload["price"] == 0
    table.clock.advance(60)
    assert table.queue().admin.recover() == 3  # their leases expired
    assert ids(table.queue().claim(limit=9)) == DESCENDING


def test_priority_levels_and_groups_come_first(table: Shipments) -> None:
    queue = table.queue()
    queue.put(task_id="cheap", priority=1)
    for name in ("dearest", "dear", "fair"):
        queue.put(task_id=name, group="b" if name == "fair" else "a")
    assert ids(queue.claim(limit=4))[0] == "cheap"


def test_a_touched_record_gets_the_place_of_its_present_value(table: Shipments, queue: AttachedQueue) -> None:
    table.change("cheap", price={"N": "9.5"})
    assert [each.task.task_id for each in queue.peek()] == DESCENDING
    queue.redrive(["cheap"], as_new=True)
    claims = queue.claim(limit=4)
    assert ids(claims) == ["dearest", "dear", "cheap", "fair"]
    table.change("fair", price={"N": "11"})
    for claim in claims:
        queue.fail(claim)
    queue.redrive(["dear"])
    queue.redrive(["fair"], as_new=True)
    assert ids(queue.claim(limit=4)) == ["fair", "dear"]


@pytest.mark.parametrize("wrong", [None, {"S": "9"}, {"NULL": True}])
def test_a_record_without_the_attribute_is_refused(table: Shipments, wrong: dict[str, Any] | None) -> None:
    queue = table.queue()
    table.change("fair", price=wrong)
    before = table.record("fair")
    with pytest.raises(IllegalTransition):
        queue.put(task_id="fair")
    assert table.record("fair") == before
    with pytest.raises(PutIncomplete):
        queue.put_many([{"task_id": "fair"}, {"task_id": "dear"}])
    assert ids(queue.claim(limit=5)) == ["dear"]
    table.change("fair", price={"N": "1"})
    queue.put(task_id="fair")
    with_place = table.own("fair")
    table.change("fair", price=wrong)
    with pytest.raises(IllegalTransition):
        queue.redrive(["fair"], as_new=True)
    assert table.own("fair") == with_place
    assert ids(queue.claim()) == ["fair"]


@pytest.mark.parametrize("day", ["", "x" * 1025])
def test_text_that_no_index_takes_is_refused(client: DynamoDBClient, day: str) -> None:
    table = Shipments(client)
    table.create_attached(order_by=DAY)
    table.change("A", day={"S": day})
    with pytest.raises(IllegalTransition):
        table.queue().put(task_id="A")


class TestDamage:
    """Somebody removes the place that freshq wrote."""

    def test_a_held_record_becomes_a_dead_letter(self, table: Shipments, queue: AttachedQueue) -> None:
        (claim,) = queue.claim()
        table.change("dearest", freshq_position=None)
        with pytest.raises(LeaseLost):
            queue.retry(claim, delay_seconds=0)
        table.clock.advance(60)
        other = table.queue()
        other.admin.recover()
        assert [(task.task_id, task.error is not None) for task in other.list("FAILURE")] == [
            ("dearest", True)
        ]
        with pytest.raises(IllegalTransition):
            other.redrive(["dearest"])
        other.redrive(["dearest"], as_new=True)
        assert ids(other.claim()) == ["dearest"]

    def test_a_waiting_record_stops_nobody(self, table: Shipments, queue: AttachedQueue) -> None:
        table.change("dearest", freshq_position=None)
        assert ids(queue.claim(limit=5)) == ["dear", "fair", "cheap"]


class TestAge:
    def test_the_deadline_is_by_creation_time(self, table: Shipments) -> None:
        queue = table.queue(max_age_seconds=100)
        queue.put(task_id="dearest", max_age_seconds=5)
        queue.put(task_id="cheap")
        table.clock.advance(50)
        queue.put(task_id="fair")
        table.clock.advance(30)
        assert ids(queue.claim(limit=1)) == ["fair"]
        table.clock.advance(20)
        assert table.queue(max_age_seconds=100).claim() == []
        assert counts(queue.stats()) == {"taken": 1, "shed": 2}

    def test_a_shorter_max_age_of_the_queue_counts(self, table: Shipments, queue: AttachedQueue) -> None:
        table.clock.advance(10)
        table.queue().redrive(["fair"], as_new=True)
        short = table.queue(max_age_seconds=5, override=True)
        approximate = short.stats(approximate=True)
        assert (approximate.pending, approximate.shed) == (1, 3)
        assert ids(short.claim(limit=5)) == ["fair"]
        assert ids(queue.claim(limit=5)) == ["dearest", "dear", "cheap"]

    def test_many_stale_records_at_the_head_are_passed_and_shed(self, client: DynamoDBClient) -> None:
        names = {f"r{number:03}": str(number) for number in range(120)}
        table = priced(client, Order.LIFO, names)
        queue = table.queue()
        queue.put_many(
            {"task_id": name, **({"max_age_seconds": 1} if int(price) >= 20 else {})}
            for name, price in names.items()
        )
        table.clock.advance(2)
        assert ids(queue.claim(limit=2)) == ["r019", "r018"]
        table.change("new", price={"N": "70.5"})  # among the stale ones
        queue.put(task_id="new")
        assert ids(queue.claim(limit=2)) == ["new", "r017"]
        while queue.admin.recover():
            pass
        in_line = [name for name in names if "freshq_pendingShard" in table.own(name)]
        assert in_line == [f"r{number:03}" for number in range(17)]
        assert queue.stats().shed == 100

    def test_the_oldest_is_found_wherever_it_is(self, table: Shipments) -> None:
        queue = table.queue(backlog=BacklogLimit(max_waiting=3))
        for name in ("fair", "dearest", "cheap"):
            queue.put(task_id=name)
            table.clock.advance(1)
        stats = queue.stats(approximate=True)
        assert (stats.oldest_pending_seconds, stats.newest_pending_seconds) == (3, 1)
        assert "oldest_pending_seconds" not in stats.bounded
        queue.put(task_id="dear")
        assert {name: known(queue, name).status for name in PRICES} == {
            "fair": TaskStatus.SHED,
            "dearest": TaskStatus.PENDING,
            "cheap": TaskStatus.PENDING,
            "dear": TaskStatus.PENDING,
        }


def test_what_needs_the_order_of_time_is_refused(table: Shipments) -> None:
    with refused("order"):
        table.queue(order="adaptive")
    for order in ("value", "deadline"):
        with refused("order"):
            table.queue(order=order)
    with refused("codel"):
        table.queue(order="fifo", codel=CodelRule(5, 10))
    assert ids(put_some(table.queue(order="fifo")).claim()) == ["cheap"]


def put_some(queue: AttachedQueue) -> AttachedQueue:
    put_all(queue, PRICES)
    return queue


def test_attaching_by_an_attribute(client: DynamoDBClient) -> None:
    """It is stored with the table, and stays; purging takes the place away."""
    table = Shipments(client)
    table.create()
    table.attach(order=Order.LIFO, order_by=PRICE)
    stored = open_attachment(table.table, client, "id", 1)[0]
    assert (stored.order, stored.order_by) == (Order.LIFO, PRICE)
    table.attach(order=Order.LIFO, order_by=PRICE)
    for other in (None, DAY, KeyPart("price", "S")):
        with refused("order_by"):
            plan_attachment(client, Attachment(table.table, ID, order_by=other))
    table.change("A", price={"N": "3"})
    queue = table.queue()
    queue.put(task_id="A")
    assert table.own("A")["freshq_position"] == {"N": "3"}
    queue.purge(confirm="default")
    assert set(table.own("A")) == {"freshq_version", "freshq_requestToken"}


@pytest.mark.usefixtures("read_once")
def test_capacity_stays(dynamodb_local: DynamoDBClient) -> None:
    """Put 2, and a life of at most 5.5 write units at claims of ten."""
    names = {f"r{number:02}": str(number) for number in range(50)}
    table = priced(dynamodb_local, Order.LIFO, names)
    client = client_at(dynamodb_local.meta.endpoint_url)
    queue = Queue.dynamodb(table.table, client, attach=True, key="id", clock=table.clock)
    with metered(client) as meter:
        put_all(queue, names)
    assert meter.write_units / 50 == pytest.approx(2.0, abs=0.05)
    with metered(client) as meter:
        while claims := queue.claim(limit=10):
            for claim in claims:
                queue.complete(claim)
        queue.close()
    assert meter.write_units / 50 + 2 <= 5.5
