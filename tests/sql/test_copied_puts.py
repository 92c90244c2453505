"""Puts of several tasks on PostgreSQL: a COPY, if freshq made all ids."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy import orm

from freshq import NewTask, PutOutcome, Queue
from freshq.policy.retry import Backoff, CallRetry
from freshq.stores.sql import SqlStore, database
from freshq.stores.sql.tasks import SqlTasks
from tests.support.histories import keeping, pulled
from tests.support.lost_replies import LostReplies
from tests.support.readings import known, total
from tests.support.statements import database_of

# What COPY would read as an end of a field, of a row or of all rows, or as NULL.
AWKWARD: Final = (
    "\t",
    "\n",
    "\r\n",
    "\\",
    "\\.",
    "\\N",
    "\\t",
    "a\\",
    "",
    "ä€😀",
    '"',
    "'; --",
    "\u2028",
    "\x01",
)
OPTIONS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"priority": 9, "delay_seconds": 60},
    {"at": 2e6, "max_age_seconds": 50.5},
    {"value": 2.5, "decay": "linear"},
    {"trace_context": f"00-{'1' * 32}-{'2' * 16}-01 a=\\t"},
    {"parent": {"task_id": "p\\N", "root_id": "\t", "deadline": 5e9, "group": "g"}},
)
# Columns that differ between two puts.
OWN: Final = ("task_id", "created_us", "put_us", "request_token", "put_token", "root_id")


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list of what each put of several tasks could be: a COPY or not."""
    asked: list[bool] = []
    can_copy = SqlTasks._can_copy

    def note(self: SqlTasks, tasks: Any) -> bool:
        asked.append(can_copy(self, tasks))
        return asked[-1]

    monkeypatch.setattr(SqlTasks, "_can_copy", note)
    return asked


@pytest.fixture
def queue(postgres_engine: sa.Engine) -> Queue:
    return Queue(SqlStore(postgres_engine), clock=lambda: 1_000_000.0)


def rows_of(engine: sa.Engine) -> list[dict[str, Any]]:
    """Return the rows in the order of the puts, without what differs between two puts of the same."""
    with engine.connect() as connection:
        found = connection.execute(sa.text("SELECT * FROM tasks ORDER BY put_us")).mappings()
        return [{name: value for name, value in row.items() if name not in OWN} for row in found]


def test_a_copy_writes_the_same_rows(queue: Queue, postgres_engine: sa.Engine, copies: list[bool]) -> None:
    new: list[dict[str, Any]] = [
        {"payload": {text: [text]}, "group": text or "x", "kind": text or "x"} for text in AWKWARD
    ]
    new += [{"payload": number} | options for number, options in enumerate(OPTIONS)]
    for arguments in new:
        queue.put(**arguments)
    one_by_one = rows_of(postgres_engine)
    queue.purge(confirm="default")
    receipts = queue.put_many(new)
    assert copies == [True]
    assert rows_of(postgres_engine) == one_by_one
    assert [known(queue, each.task_id).payload for each in receipts] == [each["payload"] for each in new]
    assert {each.outcome for each in receipts} == {PutOutcome.CREATED}


def test_an_id_that_somebody_gave_is_inserted(queue: Queue, copies: list[bool]) -> None:
    queue.put(0, task_id="a")
    receipts = queue.put_many([{"payload": 1}, {"payload": 2, "task_id": "a"}, NewTask(payload=3)])
    assert [each.outcome for each in receipts] == [
        PutOutcome.CREATED,
        PutOutcome.DUPLICATE,
        PutOutcome.CREATED,
    ]
    again = [{"payload": 4, "task_id": each.task_id} for each in receipts]
    assert {each.outcome for each in queue.put_many(again)} == {PutOutcome.DUPLICATE}
    assert copies == [False, False]


def test_a_lost_reply_doubles_nothing(
    queue: Queue, copies: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "CALL_RETRY", CallRetry(5, Backoff(base_seconds=0.01, cap_seconds=0.01)))
    queue.claim()  # the first write of a queue decides about its options
    replies = LostReplies(database_of(queue).engine, monkeypatch)
    receipts = queue.put_many([{"payload": number} for number in range(700)])
    assert replies.lost == 2
    assert {each.outcome for each in receipts} == {PutOutcome.CREATED}
    replies.loses = False
    assert total(queue) == 700
    assert copies == [True, True]


def test_a_history_has_them(postgres_engine: sa.Engine, copies: list[bool]) -> None:
    store = keeping(postgres_engine)
    try:
        Queue(store, clock=time.time).put_many([{"payload": 1}, {"payload": 2}])
        assert [event["change"] for event in pulled(store)] == ["INSERT"] * 2
        assert copies == [True]
    finally:
        store.history.end("default")


@contextmanager
def connected(engine: sa.Engine) -> Iterator[Any]:
    with engine.connect() as connection:
        yield connection


@contextmanager
def plain(engine: sa.Engine) -> Iterator[Any]:
    """Yield a connection of SQLAlchemy that freshq did not open."""
    other = sa.create_engine(engine.url, poolclass=sa.NullPool)
    with other.connect() as connection:
        yield connection


@contextmanager
def of_driver(engine: sa.Engine) -> Iterator[Any]:
    with psycopg.connect(engine.url.set(drivername="postgresql").render_as_string()) as raw:
        yield raw


@contextmanager
def session(engine: sa.Engine) -> Iterator[Any]:
    with orm.Session(engine) as opened:
        yield opened


@contextmanager
def translated(engine: sa.Engine) -> Iterator[Any]:
    with plain(engine) as connection:
        yield connection.execution_options(schema_translate_map={None: "elsewhere"})


@pytest.mark.parametrize("opened", [connected, plain, of_driver, session, translated])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_in_a_callers_transaction(
    queue: Queue, postgres_engine: sa.Engine, opened: Callable[[sa.Engine], Any], end: str
) -> None:
    """The put is the first statement of the transaction."""
    queue.claim()  # the first write of a queue decides about its options
    with opened(postgres_engine) as connection:
        for _ in range(2):
            receipts = queue.put_many([{"payload": n} for n in range(3)], connection=connection)
            assert {each.outcome for each in receipts} == {PutOutcome.CREATED}
        assert total(queue) == 0
        getattr(connection, end)()
    assert total(queue) == (6 if end == "commit" else 0)


def test_several_queues_and_tables_with_odd_names(postgres_engine: sa.Engine) -> None:
    store = SqlStore(postgres_engine, "Order", queue="other")
    store.create_table()
    try:
        queue = Queue(store, name="other", clock=time.time)
        queue.put_many([{"payload": n} for n in range(3)])
        assert total(queue) == 3
    finally:
        store.schema.metadata.drop_all(postgres_engine)


@contextmanager
def after(engine: sa.Engine, *statements: str, undo: Sequence[str]) -> Iterator[None]:
    """Run a block after some statements, and others after it."""

    def run(each: Sequence[str]) -> None:
        with engine.begin() as connection:
            for statement in each:
                connection.exec_driver_sql(statement)

    run(statements)
    try:
        yield
    finally:
        run(undo)


def test_row_security_of_a_caller_takes_inserts(queue: Queue, postgres_engine: sa.Engine) -> None:
    """Freshq's own role must see every row."""
    queue.claim()
    with after(
        postgres_engine,
        "CREATE ROLE tenant LOGIN",
        "GRANT SELECT, INSERT, UPDATE ON tasks, tasks_records, tasks_counts TO tenant",
        "ALTER TABLE tasks ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY own_rows ON tasks USING (true)",
        undo=[
            "DROP POLICY own_rows ON tasks",
            "ALTER TABLE tasks DISABLE ROW LEVEL SECURITY",
            "DROP OWNED BY tenant",
            "DROP ROLE tenant",
        ],
    ):
        address = postgres_engine.url.set(drivername="postgresql", username="tenant").render_as_string()
        with psycopg.connect(address, row_factory=dict_row) as raw:
            queue.put_many([{"payload": n} for n in range(3)], connection=raw)
        assert total(queue) == 3


def test_a_view_in_place_of_the_table_takes_inserts(queue: Queue, postgres_engine: sa.Engine) -> None:
    """Tools that change schemas without a pause put views before tables."""
    queue.claim()
    with after(
        postgres_engine,
        "ALTER TABLE tasks RENAME TO hidden",
        "CREATE VIEW tasks AS SELECT * FROM hidden",
        undo=["DROP VIEW tasks", "ALTER TABLE hidden RENAME TO tasks"],
    ):
        queue.put_many([{"payload": n} for n in range(3)])
        with psycopg.connect(postgres_engine.url.set(drivername="postgresql").render_as_string()) as raw:
            queue.put_many([{"payload": n} for n in range(3)], connection=raw)
        assert total(queue) == 6
