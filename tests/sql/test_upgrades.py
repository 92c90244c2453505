"""An upgrade of the tables, by a made-up second migration: the programs of before work beside it."""

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
import sqlalchemy as sa

from freshq import Queue, StoreError, TaskStatus
from freshq.stores.base import Health
from freshq.stores.sql import SqlStore
from freshq.stores.sql.migrations import MIGRATIONS, Migration, migrate
from freshq.stores.sql.schema import Schema
from tests.support.readings import counts, ids, known

NAMES: Final = ["0", "1", "delayed", "new", "waiting"]


def add_cost(connection: sa.Connection, schema: Schema) -> None:
    """Add a column that may be null, and its index, unless an interrupted migration has."""
    table, inspector = schema.tasks.name, sa.inspect(connection)
    if "cost" not in {column["name"] for column in inspector.get_columns(table)}:
        connection.execute(sa.text(f"ALTER TABLE {table} ADD COLUMN cost INTEGER"))
    if f"{table}_cost" not in {index["name"] for index in inspector.get_indexes(table)}:
        connection.execute(sa.text(f"CREATE INDEX {table}_cost ON {table} (queue, cost)"))


NEWER: Final = (*MIGRATIONS, Migration(MIGRATIONS[-1].version + 1, "add the cost of tasks", add_cost))


@pytest.fixture
def store(engine: sa.Engine) -> Iterator[SqlStore]:
    """Return a store on tables that this version made, with a history."""
    store = SqlStore(engine, f"old_{uuid.uuid4().hex[:8]}", queue="default", history_seconds=3600)
    store.create_table()
    yield store
    store.history.end("default")
    store.schema.metadata.drop_all(engine)


@pytest.mark.parametrize("begins", ["before", "after"])
def test_a_program_of_before_works_beside_newer_tables(
    store: SqlStore, engine: sa.Engine, begins: str
) -> None:
    table = store.schema.tasks.name
    queue = Queue(store, clock=time.time)
    queue.put("held", task_id="held")
    (held,) = queue.claim()
    queue.put("waiting", task_id="waiting", group="a", priority=3)
    with ThreadPoolExecutor(4) as pool:  # of several programs that migrate at once, one does it
        applied = list(pool.map(lambda _: migrate(store.database, store.schema, NEWER), range(4)))
    assert sorted(applied) == [[], [], [], ["add the cost of tasks"]]
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE {table} SET cost = 7"))

    if begins == "after":
        queue = Queue(SqlStore(engine, table), clock=time.time)
    queue.put("new", task_id="new", delay_seconds=0.0)
    queue.put("delayed", task_id="delayed", delay_seconds=1e-6)
    queue.put_many([{"payload": "one of several", "task_id": f"{number}"} for number in range(2)])
    queue.admin.recover()
    assert queue.complete(held, result=7).status is TaskStatus.SUCCESS
    claims = queue.claim(10)
    assert sorted(ids(claims)) == NAMES
    assert ids(claims)[0] == "waiting"
    queue.retry(claims[0], error="again", delay_seconds=0)
    for claim in claims[1:]:
        queue.complete(claim)
    (again,) = queue.claim(10)
    queue.fail(again, error="wrong")
    assert counts(queue.stats()) == {"success": 5, "failure": 1}
    assert queue.redrive(["waiting"]) == 1
    assert known(queue, "held").result == 7

    with engine.connect() as connection:
        costs = connection.execute(sa.text(f"SELECT cost FROM {table} WHERE cost IS NOT NULL"))
        assert costs.scalars().all() == [7, 7]  # what the program does not know outlasts its writes
        events = connection.execute(sa.text(f"SELECT count(*) FROM {table}_history")).scalar_one()
    assert events > 2 * len(NAMES)

    # It does not migrate them back, and its doctor says what to do.
    with pytest.raises(StoreError, match="newer than this program knows; update freshq"):
        queue.create_table()
    found = [finding for finding in store.examine() if finding.health is Health.WRONG]
    assert [(finding.subject, finding.action) for finding in found] == [("table", "update freshq")]
