"""Damaged items, and items of a newer version, never block other items. DynamoDB only."""

import logging
from typing import Any

import pytest
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue, TaskStatus
from freshq.errors import StoreError
from freshq.queue.core import core_of
from freshq.stores.dynamodb import line_records
from freshq.stores.dynamodb.passes import WorkerPasses
from tests.conftest import StoreUnderTest
from tests.support.readings import ids

DAMAGE: list[dict[str, Any]] = [
    {"payload": None},
    {"payload": {"S": "a secret that is no JSON"}},
    {"priority": {"S": "high"}},
    {"attempts": {"S": "many"}},
    {"taskStatus": {"S": "PAUSED"}},
]


def change(table: StoreUnderTest, item_id: str, changes: dict[str, Any]) -> None:
    """Change attributes of an item behind freshq's back; None removes one."""
    assert table.client is not None
    key: Any = {"taskId": {"S": item_id}}
    item = table.client.get_item(TableName=str(table.table), Key=key).get("Item", key)
    changed: Any = {name: value for name, value in (item | changes).items() if value is not None}
    table.client.put_item(TableName=str(table.table), Item=changed)


def records(client: DynamoDBClient, table: StoreUnderTest, prefix: str) -> list[str]:
    """Return the ids of freshq's own items of one kind."""
    found = client.scan(TableName=str(table.table))["Items"]
    return [item["taskId"]["S"] for item in found if item["taskId"]["S"].startswith(prefix)]


@pytest.fixture
def queue(table: StoreUnderTest) -> Queue:
    return table.queue(order="fifo")


@pytest.mark.parametrize("damage", DAMAGE)
class TestTasks:
    def test_one_that_waits(
        self, table: StoreUnderTest, queue: Queue, damage: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG, "freshq")
        for task_id in "abc":
            queue.put("work", task_id=task_id)
            table.clock.advance(1)
        change(table, "a", damage)
        assert ids(queue.claim(limit=5)) == ["b", "c"]
        assert queue.claim() == []
        assert queue.stats().taken == 2
        assert [task.task_id for task in queue.list("TAKEN")] == ["b", "c"]
        assert "secret" not in caplog.text
        if "taskStatus" not in damage:
            assert "task a is a dead letter now" in caplog.text

    def test_one_whose_holder_died(self, table: StoreUnderTest, queue: Queue, damage: Any) -> None:
        for task_id in "abc":
            queue.put("work", task_id=task_id)
        queue.claim(limit=3, lease_seconds=10)
        change(table, "b", damage)
        table.clock.advance(20)
        assert sorted(ids(table.queue().claim(limit=5))) == ["a", "c"]
        assert table.queue().admin.recover() == 0

    def test_one_that_is_delayed(self, table: StoreUnderTest, queue: Queue, damage: Any) -> None:
        for task_id in "abc":
            queue.put("work", task_id=task_id, delay_seconds=5)
        change(table, "b", damage)
        table.clock.advance(6)
        assert sorted(ids(queue.claim(limit=5))) == ["a", "c"]


def test_a_task_without_payload_is_a_dead_letter_that_is_listed(table: StoreUnderTest, queue: Queue) -> None:
    queue.put("work", task_id="a")
    change(table, "a", {"payload": None})
    with pytest.raises(StoreError, match="payload"):
        queue.get("a")
    assert queue.claim() == []
    (dead,) = queue.list("FAILURE")
    assert (dead.status, dead.payload) == (TaskStatus.FAILURE, None)
    assert "cannot be read" in str(dead.error)
    assert queue.stats().failure == 1


@pytest.mark.parametrize(
    "damage",
    [{"heldUntil": None}, {"heldUntil": {"S": "?"}}, {"requestToken": None}, {"aheadIds": {"S": "?"}}],
)
def test_a_damaged_lease_record(
    table: StoreUnderTest, client: DynamoDBClient, queue: Queue, damage: Any
) -> None:
    queue.put("work", task_id="a")
    queue.claim(lease_seconds=10)
    (record,) = records(client, table, "freshq#lease#")
    change(table, record, damage)
    other = table.queue()
    other.put("work", task_id="b", delay_seconds=5)
    table.clock.advance(20)
    assert sorted(ids(other.claim(limit=5))) == ["a", "b"]
    table.clock.advance(1000)
    assert other.admin.recover() == 2


def test_a_lease_record_that_names_nothing_goes_away(
    table: StoreUnderTest, client: DynamoDBClient, queue: Queue
) -> None:
    queue.put("work", task_id="a")
    queue.claim(lease_seconds=10)
    (record,) = records(client, table, "freshq#lease#")
    change(table, record, {"taskIds": None})
    table.clock.advance(20)
    assert queue.stats(approximate=True).pending == 0
    assert table.queue().admin.recover() == 0
    table.clock.advance(1000)
    assert table.queue().admin.recover() == 0
    assert records(client, table, "freshq#lease#") == []


def test_damaged_line_and_control_records(
    table: StoreUnderTest, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_records, "MAX_STALENESS_SECONDS", 0.0)
    queue.put("work", task_id="a", group="g")
    queue.put("work", task_id="b", priority=3)
    change(table, "freshq#control#default", {"levels": {"NS": ["3", "4.5"]}, "paused": {"S": "?"}})
    far: Any = {"N": str((table.clock.now + 3600) * 1000)}
    change(table, "freshq#line#default#x", {"dueShard": {"S": "default#LINES"}, "dueAt": far})
    assert ids(table.queue().claim(limit=5)) == ["b", "a"]


@pytest.mark.parametrize(
    "damage",
    [
        {"values": None},
        {"values": {"S": "no JSON"}},
        {"values": {"S": "[1]"}},
        {"values": {"S": '{"until": "soon", "holder": 3}'}},
        {"requestToken": None},
        {"requestToken": {"N": "1"}},
    ],
)
def test_a_damaged_record_of_the_upkeep_is_replaced(
    table: StoreUnderTest, queue: Queue, damage: dict[str, Any]
) -> None:
    queue.admin.upkeep()
    change(table, "freshq#record#default#upkeep", damage)
    table.clock.advance(20)
    queue.put("work", delay_seconds=5)
    table.clock.advance(10)
    other = table.queue()
    assert queue.admin.upkeep().moved + other.admin.upkeep().moved == 1
    record = core_of(other).store.read_record("default", "upkeep")
    assert record is not None
    assert set(record.values) == {"holder", "until"}


def test_damaged_counts_are_replaced(table: StoreUnderTest, queue: Queue) -> None:
    store = core_of(queue).store
    store.add_counts("default", "flow", {"served": 2, "offered": 3}, None)
    change(table, "freshq#counts#default#flow", {"count_served": {"S": "many"}})
    assert store.read_counts("default", "flow") == {"offered": 3}
    store.add_counts("default", "flow", {"served": 1}, None)
    assert store.read_counts("default", "flow") == {"served": 1}


def test_damaged_levels_are_replaced(table: StoreUnderTest, queue: Queue) -> None:
    change(table, "freshq#control#default", {"levels": {"S": "?"}})
    queue.put("work", task_id="a", priority=4)
    assert ids(table.queue().claim()) == ["a"]


@pytest.mark.parametrize("lease", [None, {"S": "?"}, {"N": "9" * 30}])
def test_a_damaged_pass_slot_is_free(table: StoreUnderTest, client: DynamoDBClient, lease: Any) -> None:
    passes = WorkerPasses(str(table.table), "default", client, table.clock)
    far: Any = {"N": str((table.clock.now + 15) * 1000)}
    slot: Any = {"holder": {"S": "dead"}, "leaseUntil": far, "requestToken": {"S": "dead"}}
    change(table, "freshq#pass#default#0", slot)
    assert passes.all_taken()
    change(table, "freshq#pass#default#0", {"leaseUntil": lease})
    assert not passes.all_taken()
    with passes.slot("me") as entered:
        assert entered


def test_unreadable_tasks_are_counted(table: StoreUnderTest, queue: Queue) -> None:
    queue.put("work", task_id="a")
    change(table, "a", {"payload": None})
    assert queue.claim() == []
    assert [queue.admin.take_dead_letter_counts() for _ in range(2)] == [(1, 0), (0, 0)]
