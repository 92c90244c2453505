"""No statement locks a waiting task that it does not change: claims would skip it, and find nothing."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pymysql  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa

from freshq import Queue, Settlement, Task
from freshq.queue.upkeep import LARGE_PORTION, SMALL_PORTION
from freshq.stores.sql import SqlStore
from freshq.stores.sql.rows import microseconds
from freshq.stores.sql.statements import page_of
from tests.conftest import Clock
from tests.support.readings import counts

SERVERS: Final = ("postgres", "mariadb")
# Most of the table, so that MariaDB prefers a full scan to a lookup of each id.
MANY: Final = 60
LEASE_SECONDS: Final = 30.0
RETENTION_SECONDS: Final = 100.0
KEPT_SECONDS: Final = 60.0
ODD_IDS: Final = [
    *("x", "x ", " x", 'a"b', "a'b", "a\\b", "a\\u0041", "%s", ":a", "\x7f", "\u2028", "\ufffd"),
    *("\u00e9", "e\u0301", "\u00df", "ss", "\U0001f600", "\U0010ffff", "\u65e5\u672c", "\u00e9" * 512),
]
# The accesses of EXPLAIN that read no more rows than they return.
FOUND: Final = ("const", "eq_ref", "range", "ref")


@pytest.fixture(params=SERVERS)
def engine(request: pytest.FixtureRequest) -> sa.Engine:
    engine: sa.Engine = request.getfixturevalue(f"{request.param}_engine")
    return engine


@pytest.fixture
def queue(engine: sa.Engine, clock: Clock) -> Queue:
    return _queue(engine, clock)


def _queue(engine: sa.Engine, clock: Clock) -> Queue:
    return Queue(
        SqlStore(engine), clock=clock, lease_seconds=LEASE_SECONDS, retention_seconds=RETENTION_SECONDS
    )


def _delayed(queue: Queue) -> None:
    queue.put("delayed", delay_seconds=5)


def _stale(queue: Queue) -> None:
    queue.put("stale", max_age_seconds=5)


def _over(queue: Queue) -> None:
    queue.put("over")
    (claim,) = queue.claim()
    queue.complete(claim)


UPKEEP: Final[dict[str, tuple[Callable[[Queue], None], float, str]]] = {
    "due": (_delayed, 6, "due"),
    "over_ids": (_over, RETENTION_SECONDS + 1, "over"),
    "stale": (_stale, 6, "stale"),
}


def _statement(store: SqlStore, name: str) -> Any:
    dialect = store.database.engine.dialect
    if name == "stale":  # PostgreSQL finds and changes them at once
        return store.sql.statement("leave_lines" if dialect.name == "postgresql" else "stale")
    return store.sql.statement(name)


@pytest.mark.parametrize("name", UPKEEP)
@pytest.mark.parametrize("tasks", [0, 3])
def test_a_claim_beside_a_portion_of_upkeep_finds_the_waiting_task(
    engine: sa.Engine, clock: Clock, queue: Queue, name: str, tasks: int
) -> None:
    put, seconds, agenda = UPKEEP[name]
    for _ in range(tasks):
        put(queue)
    clock.advance(seconds)
    queue.put("waiting", max_age_seconds=600)
    store = SqlStore(engine)
    where = {"of_queue": queue.name, "agenda": agenda, "from_us": 0, "now_us": microseconds(clock())}
    where |= page_of(10)
    with store.database.engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        assert len(connection.execute(_statement(store, name), where).all()) == tasks
        (claim,) = Queue(SqlStore(engine), clock=clock).claim()
        connection.exec_driver_sql("ROLLBACK")
    assert claim.task.payload == "waiting"


def _lock(task_id: str) -> str:
    return f"SELECT status FROM tasks WHERE task_id = '{task_id}' AND queue = 'default' FOR UPDATE"


@pytest.fixture
def plans(
    mariadb_engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[tuple[str, str | None]]]:
    """Collect how MariaDB finds the tasks that it changes or locks: the statement, and the index."""
    found: list[tuple[str, str | None]] = []
    query = pymysql.connections.Connection.query
    given = mariadb_engine.url.translate_connect_args(username="user")
    # EXPLAIN reads, and locks, a row that has the whole key.
    explaining = pymysql.connect(**given, autocommit=True)
    cursor = explaining.cursor(pymysql.cursors.DictCursor)

    def explained(connection: Any, sql: str | bytes, *others: Any) -> Any:
        text = sql if isinstance(sql, str) else sql.decode()
        if connection is not explaining and (text.startswith(("UPDATE", "DELETE")) or "FOR UPDATE" in text):
            cursor.execute("EXPLAIN " + text)
            found.extend(
                (text, row["key"] if row["type"] in FOUND else None)
                for row in cursor
                # Only a DELETE locks the rows of its subqueries.
                if row["table"] == "tasks" and (row["select_type"] != "DERIVED" or text.startswith("DELETE"))
            )
        return query(connection, sql, *others)

    monkeypatch.setattr(pymysql.connections.Connection, "query", explained)
    yield found
    explaining.close()


def _settle(queue: Queue, _clock: Clock) -> None:
    settled = queue.settle_many([Settlement.complete(claim) for claim in queue.claim(limit=MANY)])
    assert sum(isinstance(each, Task) for each in settled) == MANY


def _promote(queue: Queue, clock: Clock) -> None:
    claims = queue.claim(limit=MANY)
    clock.advance(LEASE_SECONDS + 1)
    assert queue.admin.recover() == len(claims) == MANY


def _remove(queue: Queue, clock: Clock) -> None:
    _settle(queue, clock)
    clock.advance(RETENTION_SECONDS + 1)
    queue.admin.recover()
    assert counts(queue.stats()).get("success") is None


def _shed(queue: Queue, clock: Clock) -> None:
    clock.advance(61)
    assert queue.claim() == []


@pytest.mark.parametrize("act", [_settle, _promote, _remove, _shed])
def test_mariadb_finds_the_tasks_that_it_locks_by_their_ids(
    mariadb_engine: sa.Engine,
    clock: Clock,
    plans: list[tuple[str, str | None]],
    act: Callable[[Queue, Clock], None],
) -> None:
    queue = _queue(mariadb_engine, clock)
    queue.put_many([{"payload": "waiting", "max_age_seconds": 60}] * MANY)
    act(queue, clock)
    assert len(plans) > 2
    assert [statement for statement, index in plans if index != "PRIMARY"] == []


@pytest.mark.parametrize("act", [_settle, _promote, _remove, _shed])
def test_no_statement_waits_for_a_locked_task_that_it_does_not_change(
    engine: sa.Engine, clock: Clock, queue: Queue, act: Callable[[Queue, Clock], None]
) -> None:
    queue.put_many([{"payload": "waiting", "max_age_seconds": 60}] * MANY)
    queue.put("locked", task_id="locked", delay_seconds=5000)
    with sa.create_engine(engine.url, poolclass=sa.NullPool).begin() as connection:
        assert connection.exec_driver_sql(_lock("locked")).scalar_one() == "PENDING"
        act(queue, clock)
    assert counts(queue.stats())["delayed"] == 1


def test_old_events_are_deleted_while_a_transaction_writes_others(queue: Queue, engine: sa.Engine) -> None:
    store = SqlStore(engine, queue=queue.name, history_seconds=KEPT_SECONDS)
    store.create_table()
    queue.put_many([{"payload": "waiting"}] * MANY)
    try:
        with sa.create_engine(engine.url, poolclass=sa.NullPool).begin() as connection:
            queue.put("not committed", connection=connection)
            # The database writes the times of events.
            assert store.history.prune(queue.name, time.time() + KEPT_SECONDS + 1, LARGE_PORTION) == MANY
    finally:
        store.history.end(queue.name)


def test_a_task_with_any_id_is_deleted_after_its_retention(queue: Queue, clock: Clock) -> None:
    put = {queue.put("over", task_id=task_id).task_id for task_id in ODD_IDS}
    queue.settle_many([Settlement.complete(claim) for claim in queue.claim(limit=len(put))])
    clock.advance(RETENTION_SECONDS + 1)
    alike = ["X", "x  ", "E\u0301", "\u00e8"]
    for task_id in alike:
        queue.put("waiting", task_id=task_id)
    queue.admin.recover()
    assert [task_id for task_id in (*ODD_IDS, *alike) if queue.get(task_id)] == alike


def test_a_queue_misses_no_event_while_another_one_deletes_old_ones(engine: sa.Engine, clock: Clock) -> None:
    """Their events are neighbours in the index: those of `a` end where those of `b` begin."""
    stores = {name: SqlStore(engine, queue=name, history_seconds=KEPT_SECONDS) for name in "ab"}
    for name, store in stores.items():
        store.create_table()
        Queue(store, name=name, clock=clock).put(f"of {name}")
    changes: list[str] = []

    def batch_b(_connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
        if statement.startswith("DELETE") and not changes:
            changes.append(statement)
            stores["b"].history.add_batches("b")

    apart = SqlStore(engine.url.render_as_string(hide_password=False), queue="a")
    try:
        sa.event.listen(apart.database.engine, "after_cursor_execute", batch_b)
        assert apart.history.prune("a", time.time() + KEPT_SECONDS + 1, LARGE_PORTION) == 1
        assert len(changes) == 1
        assert len(stores["b"].history.events("b", 1)) == 1
    finally:
        apart.close()
        for name, store in stores.items():
            store.history.end(name)


def test_locked_tasks_do_not_hide_the_due_ones_after_them(
    engine: sa.Engine, clock: Clock, queue: Queue
) -> None:
    for number in range(3 * SMALL_PORTION):
        queue.put("delayed", task_id=f"{number:03}", delay_seconds=5 + number / 1000)
    clock.advance(6)
    with sa.create_engine(engine.url, poolclass=sa.NullPool).begin() as connection:
        for number in range(2 * SMALL_PORTION):
            connection.exec_driver_sql(_lock(f"{number:03}"))
        assert len(queue.claim(limit=3 * SMALL_PORTION)) == SMALL_PORTION
