"""Counts and listings on DynamoDB read the indexes, not every task, as the reported units show."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from benchmarks.capacity import metered
from types_boto3_dynamodb import DynamoDBClient

from freshq import AttachedQueue, Queue, Settlement, Task, TaskStatus
from tests.conftest import StoreUnderTest, on_table
from tests.support.attached import Shipments
from tests.support.refusals import refused

DONE = 1_000
WHOLE_TABLE_UNITS = DONE // 4


def read_units(client: DynamoDBClient, read: Callable[[], Any]) -> float:
    with metered(client) as meter:
        read()
    return meter.read_units


@pytest.fixture(scope="module")
def table(dynamodb_local: DynamoDBClient) -> StoreUnderTest:
    """Return a table with 1,000 completed tasks of 1 KB, 3 that wait and 40 that are held."""
    table = on_table("dynamodb_local", dynamodb_local)
    queue = table.queue()
    for _ in range(DONE // 100):
        queue.put_many([{"payload": "x" * 1024}] * 100)
        queue.settle_many(list(map(Settlement.complete, queue.claim(limit=100))))
    queue.put_many([{"payload": "held", "task_id": f"held-{number:02}"} for number in range(40)])
    assert len(queue.claim(limit=40)) == 40
    queue.put_many([{"payload": "waits", "task_id": f"waits-{number}"} for number in range(3)])
    return table


def test_what_is_counted_and_listed(table: StoreUnderTest) -> None:
    queue, client = table.queue(), table.client
    assert client is not None
    stats = queue.stats(approximate=True)
    assert (stats.pending, stats.delayed, stats.taken) == (3, 0, 40)
    assert [task.task_id for task in queue.list("PENDING")] != []
    assert len(queue.list("PENDING")) == 3
    assert len(queue.list("TAKEN", limit=10)) == 10
    assert read_units(client, lambda: queue.stats(approximate=True)) <= 5
    assert read_units(client, lambda: queue.list("PENDING")) <= 5
    assert read_units(client, lambda: queue.list("TAKEN", limit=10)) <= 40


def test_the_price_of_an_exact_count_is_known_before_it_reads(table: StoreUnderTest) -> None:
    queue, client = table.queue(), table.client
    assert client is not None
    units = queue.admin.exact_count_units()
    assert units is not None
    assert units == pytest.approx(read_units(client, queue.stats), rel=0.1)
    assert units > WHOLE_TABLE_UNITS


def test_only_dynamodb_bills_reads(store: StoreUnderTest) -> None:
    priced = store.queue().admin.exact_count_units() is not None
    assert priced is ("dynamodb" in store.kind)


def pages(queue: Queue | AttachedQueue, status: str, limit: int) -> Iterator[Task]:
    cursor = None
    while True:
        page = queue.list(status, limit=limit, cursor=cursor)
        yield from page
        if (cursor := page.cursor) is None:
            return


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("shards", [1, 3])
def test_pages_have_each_task_once(store: StoreUnderTest, limit: int, shards: int) -> None:
    options: Any = {"shards": shards} if "dynamodb" in store.kind else {}
    queue = store.queue(max_age_seconds=100, **options)
    queue.put("stale", task_id="stale")
    store.clock.advance(101)
    for number in range(4):
        queue.put("work", task_id=f"p{number}", priority=number % 2, group="g" if number > 1 else None)
        queue.put("work", task_id=f"d{number}", delay_seconds=5 + number)
    queue.put("short", task_id="short", max_age_seconds=1)
    queue.put_many([{"payload": "work", "task_id": f"t{number}", "priority": 9} for number in range(7)])
    held = queue.claim(limit=7)
    queue.complete(held[0])
    store.clock.advance(2)
    pending = [task.task_id for task in pages(queue, "PENDING", limit)]
    assert sorted(pending) == sorted(
        [f"p{number}" for number in range(4)] + [f"d{number}" for number in range(4)]
    )
    taken = [task.task_id for task in pages(queue, "TAKEN", limit)]
    assert sorted(taken) == sorted(claim.task.task_id for claim in held[1:])
    assert all(task.status is TaskStatus.TAKEN for task in pages(queue, "TAKEN", limit))


def test_a_task_that_leaves_between_two_pages_costs_no_other_its_place(table_store: StoreUnderTest) -> None:
    queue = table_store.queue(order="fifo")
    queue.put_many([{"payload": number, "task_id": str(number)} for number in range(5)])
    first = queue.list("PENDING", limit=2)
    last = first.tasks[-1].task_id
    for claim in queue.claim(limit=2):
        queue.retry(claim, delay_seconds=60)
    rest = [task.task_id for task in queue.list("PENDING", cursor=first.cursor)]
    assert last == "1"
    assert sorted(rest) == ["0", "1", "2", "3", "4"]
    queue.purge(task_ids=["1"], confirm=queue.name)
    assert sorted(task.task_id for task in queue.list("PENDING", cursor=first.cursor)) == ["0", "2", "3", "4"]


def test_a_wrong_cursor_is_refused(table_store: StoreUnderTest) -> None:
    for cursor in ("1", "e30=", "é"):
        with refused("cursor"):
            table_store.queue().list("PENDING", cursor=cursor)


def test_records_of_an_attached_table(shipments: Shipments) -> None:
    queue = shipments.queue()
    for task_id in "ABC":
        queue.put(task_id=task_id)
        shipments.clock.advance(1)
    assert [task.task_id for task in pages(queue, "PENDING", 1)] == ["A", "B", "C"]
    queue.claim(limit=2)
    assert [task.task_id for task in pages(queue, "TAKEN", 1)] == ["A", "B"]
