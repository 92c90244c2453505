"""Opening and closing a queue, and the defaults of its options."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue
from freshq.policy.rules import OverloadRules
from freshq.queue.shared.measures import FlowMeter
from freshq.stores.memory import MemoryStore
from tests.conftest import Clock
from tests.support.readings import ids, known
from tests.support.statements import database_of

# Values of SQLite's `PRAGMA synchronous`.
NORMAL, FULL = 1, 2


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


def test_in_a_database_it_has_the_table_tasks_and_ten_connections(url: str) -> None:
    queue = Queue.sql(url)
    queue.create_table()
    assert "tasks" in sa.inspect(database_of(queue).engine).get_table_names()
    assert database_of(queue).engine.pool.status() == "0 of 10 connections in use"
    queue.put("work", task_id="a")
    assert known(queue, "a").queue == "default"
    assert ids(queue.claim()) == ["a"]
    with database_of(queue).engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == FULL
    queue.close()


def test_in_a_database_it_has_what_it_is_told(url: str) -> None:
    queue = Queue.sql(url, "jobs", max_connections=3, durable=False, name="mail", lease_seconds=36)
    queue.create_table()
    assert "jobs" in sa.inspect(database_of(queue).engine).get_table_names()
    assert (queue.name, queue.admin.config.lease_seconds) == ("mail", 36)
    with database_of(queue).engine.connect() as connection:
        assert database_of(queue).engine.pool.status() == "1 of 3 connections in use"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == NORMAL
        # A twelfth of a lease is the longest wait for a lock.
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 1000 * 36 / 12
    queue.close()


def test_ids_are_unique_within_a_queue_of_a_database(url: str) -> None:
    queues = [Queue.sql(url, name=name) for name in ("a", "b")]
    queues[0].create_table()
    for queue in queues:
        queue.put(queue.name, task_id="same")
    assert [known(queue, "same").payload for queue in queues] == ["a", "b"]
    for queue in queues:
        queue.close()


def test_on_dynamodb(account_client: DynamoDBClient) -> None:
    queue = Queue.dynamodb("Jobs", account_client, name="mail")
    queue.create_table()
    queue.put("work", task_id="a")
    keys = [item["taskId"]["S"] for item in account_client.scan(TableName="Jobs")["Items"]]
    assert "freshq:mail#a" in keys
    assert Queue.dynamodb("Jobs", account_client).get("a") is None
    assert ids(queue.claim()) == ["a"]


def test_a_flush_writes_what_was_counted_for_other_processes(clock: Clock) -> None:
    store = MemoryStore()
    queue = Queue(store, clock=clock, max_age_seconds=60)
    queue.put("work")
    meter = FlowMeter(store, "default", OverloadRules(60.0))
    assert meter.flow(clock.now).offered == 0
    queue.admin.flush()
    offered = meter.flow(clock.now).offered
    assert offered > 0
    clock.advance(60 - clock.now % 60)  # the window before counts until this one has passed
    assert meter.flow(clock.now).offered == 1 / 60
    clock.advance(60)
    assert meter.flow(clock.now).offered == 0


def test_a_queue_that_counted_nothing_reads_no_clock_to_close() -> None:
    readings: list[float] = []

    def read() -> float:
        readings.append(0.0)
        return 0.0

    unused = Queue.memory(clock=read)
    readings.clear()
    unused.close()
    assert readings == []
    with Queue.memory(clock=read) as queue:
        queue.put("work")
        readings.clear()
    assert readings


def test_a_check_accepts_what_a_put_would(clock: Clock) -> None:
    queue = Queue.memory(clock=clock)
    assert queue.admin.check({"payload": 1, "at": clock.now + 5}).at == clock.now + 5
    assert list(queue.list()) == []


def test_a_page_has_a_hundred_tasks_unless_told_otherwise() -> None:
    queue = Queue.memory()
    queue.put_many([{"payload": number} for number in range(101)])
    page = queue.list()
    assert (len(page), len(queue.list(cursor=page.cursor))) == (100, 1)
