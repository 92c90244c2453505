"""Tasks that are stale by their own max age, on DynamoDB: the query passes over them, in bounded pages."""

import base64
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from local.faults import AFTER, hooked
from local.servers import load
from types_boto3_dynamodb import DynamoDBClient

from freshq import Order, TaskStatus
from freshq.policy.shedding import ShedReason, too_late
from freshq.queue.core import core_of
from freshq.stores.dynamodb import lines, queries, unfit
from freshq.stores.dynamodb.queries import MAX_PAGES
from tests.conftest import StoreUnderTest
from tests.support.readings import known

STALE = 3_000


@contextmanager
def calls_of(client: DynamoDBClient) -> Iterator[Counter[str]]:
    """Count the calls of a client by operation."""
    counts: Counter[str] = Counter()

    def count(model: Any, **_rest: Any) -> None:
        counts[model.name] += 1

    with hooked(client, AFTER, count):
        yield counts


def put_copies(table: StoreUnderTest, task_id: str, count: int, step_seconds: float) -> None:
    """Write copies of a task, each created a step later or earlier, with the calls of a bulk load."""
    assert table.client is not None
    task = known(table.queue(), task_id)
    copies = [
        replace(task, task_id=f"{task_id}-{number}", created=task.created + number * step_seconds)
        for number in range(1, count + 1)
    ]
    load(table.client, str(table.table), copies)


@pytest.mark.parametrize(("order", "step_seconds"), [(Order.LIFO, 0.001), (Order.FIFO, -0.001)])
def test_a_claim_passes_over_thousands_of_stale_tasks_in_a_few_calls(
    table_store: StoreUnderTest, dynamodb_local: DynamoDBClient, order: Order, step_seconds: float
) -> None:
    table, client = table_store, dynamodb_local
    table.queue(order=order).put("stale", task_id="stale", max_age_seconds=5)
    table.queue().put("live", task_id="live")
    put_copies(table, "stale", STALE, step_seconds)
    table.clock.advance(10)
    queue = table.queue()
    with calls_of(client) as calls:
        claims = queue.claim(limit=1)
    assert [claim.task.payload for claim in claims] == ["live"]
    assert calls["Query"] <= MAX_PAGES
    # The stored options, the control record, the learned reserve, what this process names instead (read and
    # written), the lease record and the claim itself.
    assert calls.total() <= MAX_PAGES + 7
    assert queue.claim(limit=1) == []


def test_approximate_stats_count_stale_tasks_as_shed(table: StoreUnderTest) -> None:
    queue = table.queue()
    queue.put_many([{"payload": number, "max_age_seconds": 5} for number in range(30)])
    table.clock.advance(2)
    queue.put("live")
    table.clock.advance(8)
    stats = queue.stats(approximate=True)
    assert (stats.pending, stats.shed) == (1, 30)
    assert stats.oldest_pending_seconds == stats.newest_pending_seconds == 8


def test_a_line_of_nothing_but_stale_tasks_is_read_in_few_pages(
    table: StoreUnderTest, client: DynamoDBClient
) -> None:
    queue = table.queue()
    queue.put("stale", task_id="stale", max_age_seconds=5)
    put_copies(table, "stale", 300, 0.001)
    table.clock.advance(10)
    with calls_of(client) as calls:
        assert queue.claim(limit=10) == []
    assert calls["UpdateItem"] == 0
    assert calls["Query"] <= 2 * MAX_PAGES


@pytest.mark.parametrize(("order", "step_seconds"), [(Order.LIFO, 0.001), (Order.FIFO, -0.001)])
def test_a_claim_goes_on_where_the_one_before_ran_out_of_pages(
    table: StoreUnderTest, monkeypatch: pytest.MonkeyPatch, order: Order, step_seconds: float
) -> None:
    monkeypatch.setattr(queries, "LARGER_PAGES_KEYS", (20,))
    table.queue().put("stale", task_id="stale", max_age_seconds=5)
    table.queue().put("live", task_id="live")
    put_copies(table, "stale", 150, step_seconds)
    table.clock.advance(10)
    queue = table.queue(order=order, override=True)
    found = [claim.task.payload for _ in range(4) for claim in queue.claim(limit=1)]
    assert found == ["live"]
    queue.put("another")
    assert sum(len(queue.claim(limit=1)) for _ in range(4)) == 1


def test_claims_after_the_first_begin_where_only_stale_tasks_were(
    table_store: StoreUnderTest, dynamodb_local: DynamoDBClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "LARGER_PAGES_KEYS", (30,))
    table = table_store
    table.queue().put("stale", task_id="stale", max_age_seconds=5)
    table.queue().put("live", task_id="live")
    put_copies(table, "live", 10, -0.001)
    put_copies(table, "stale", 70, 0.001)
    table.clock.advance(10)
    queue = table.queue()
    queue.admin.recover()  # so that no claim looks for expired leases
    queries_of_each = []
    for _ in range(3):
        with calls_of(dynamodb_local) as calls:
            assert len(queue.claim()) == 1
        queries_of_each.append(calls["Query"])
    assert queries_of_each[0] > queries_of_each[1] == queries_of_each[2] == 2
    monkeypatch.setattr(queries, "RESUME_SECONDS", -1.0)  # a task may have returned among the stale ones
    with calls_of(dynamodb_local) as calls:
        assert len(queue.claim()) == 1
    assert calls["Query"] == queries_of_each[0]


def test_upkeep_sheds_what_claims_passed_over_in_bounded_portions(
    table_store: StoreUnderTest, dynamodb_local: DynamoDBClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unfit, "MAX_SHED", 50)
    table, client = table_store, dynamodb_local
    queue = table.queue()
    queue.put("stale", task_id="stale", max_age_seconds=5)
    queue.put("live", task_id="live")
    put_copies(table, "stale", 60, 0.001)
    table.clock.advance(10)
    assert [claim.task.payload for claim in queue.claim()] == ["live"]
    shed = []
    for _ in range(3):
        with calls_of(client) as calls:
            queue.admin.upkeep()
        shed.append(calls["UpdateItem"])
    assert shed == [50, 11, 0]
    stored = client.scan(TableName=str(table.table), FilterExpression="attribute_exists(pendingShard)")
    assert stored["Items"] == []
    task = table.queue().get("stale-60")
    assert task is not None
    assert (task.status, task.shed_reason) == (TaskStatus.SHED, None)  # as in the other stores


def test_upkeep_leaves_what_is_stale_by_the_max_age_of_the_queue_to_ttl(
    table_store: StoreUnderTest, dynamodb_local: DynamoDBClient
) -> None:
    queue = table_store.queue(max_age_seconds=60)
    queue.put("short", max_age_seconds=5)
    queue.put("long")
    table_store.clock.advance(10)
    queue.claim()
    queue.put("old")
    table_store.clock.advance(100)
    with calls_of(dynamodb_local) as calls:
        core_of(queue).store.tidy("default", table_store.clock.now, 1000)
    assert calls["UpdateItem"] == 0


def test_approximate_stats_look_into_some_groups_only(
    table_store: StoreUnderTest, dynamodb_local: DynamoDBClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = table_store.queue()
    queue.put_many([{"payload": "work", "group": str(number)} for number in range(6)])
    assert queue.stats(approximate=True).pending == 6
    monkeypatch.setattr(lines, "MAX_LINES", 3)
    with calls_of(dynamodb_local) as calls:
        stats = queue.stats(approximate=True)
    assert calls["Query"] <= 4 * 3 + 2
    assert stats.pending == 2
    assert (stats.bounded["pending"], stats.bounded["oldest_pending_seconds"]) == ("at least", "at least")


def test_a_stale_task_that_changes_before_it_leaves_its_line_is_claimed(
    table: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = table.queue(), table.queue()
    queue.put("stale", task_id="of both", max_age_seconds=5)
    table.clock.advance(10)

    def put_over(*given: float) -> ShedReason | None:
        other.put("new", task_id="of both", on_conflict="update")
        return too_late(*given)

    assert queue.claim() == []
    with monkeypatch.context() as patched:
        patched.setattr(unfit, "too_late", put_over)
        queue.admin.upkeep()
    assert [claim.task.payload for claim in queue.claim()] == ["new"]


def test_claims_look_from_the_start_where_the_place_to_go_on_is_past_the_max_age(
    table: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DynamoDB refuses a query that begins outside its own bounds."""
    monkeypatch.setattr(queries, "LARGER_PAGES_KEYS", (20,))
    queue = table.queue(max_age_seconds=30)
    queue.put("stale", task_id="early", max_age_seconds=5)
    put_copies(table, "early", 150, 0.001)
    table.clock.advance(10)
    assert queue.claim() == []
    table.clock.advance(8)
    queue.put("live")
    table.clock.advance(1)
    queue.put("stale", task_id="late", max_age_seconds=5)
    put_copies(table, "late", 40, 0.001)
    table.clock.advance(16)
    assert [claim.task.payload for claim in queue.claim()] == ["live"]


@pytest.mark.parametrize("newer", [0, 1])
def test_a_listing_goes_on_after_a_task_that_is_past_the_max_age_by_now(
    table: StoreUnderTest, newer: int
) -> None:
    queue = table.queue(max_age_seconds=30)
    queue.put_many([{"payload": "stale"}] * 3)
    first = queue.list("PENDING", limit=1)
    table.clock.advance(20)
    queue.put_many([{"payload": "live"}] * newer)
    table.clock.advance(20)
    rest = queue.list("PENDING", limit=9, cursor=first.cursor)
    assert [task.payload for task in rest] == ["live"] * newer


def test_a_listing_goes_on_after_a_task_that_is_at_the_max_age_to_the_microsecond(
    table: StoreUnderTest,
) -> None:
    """The time that the bound comes from is not the nearest number to a microsecond."""
    queue = table.queue(max_age_seconds=1.2)
    queue.put_many([{"payload": number} for number in range(5)])
    first = queue.list("PENDING", limit=4)
    table.clock.advance(1)
    queue.put("live")
    table.clock.now = round(first[3].created + 1.2, 6)
    assert table.clock.now - 1.2 < first[3].created
    rest = queue.list("PENDING", limit=9, cursor=first.cursor)
    assert [task.payload for task in rest] == ["live"]


def test_a_cursor_without_a_place_in_the_order_is_refused(table: StoreUnderTest) -> None:
    cursor = base64.urlsafe_b64encode(b'{"pendingShard": {"S": "a"}}').decode()
    with pytest.raises(ValueError, match="cursor: must be that of a page of PENDING tasks"):
        table.queue().list("PENDING", cursor=cursor)
