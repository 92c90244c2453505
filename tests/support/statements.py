"""The statements of the SQL store, and the work that they cause in the database."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
import sqlalchemy as sa

from freshq import Queue
from freshq.queue.base import BaseQueue
from freshq.queue.core import core_of
from freshq.stores.sql import SqlStore
from freshq.stores.sql.database import Database
from freshq.stores.sql.schema import schema
from tests.support.patience import PATIENCE_SECONDS

# Instructions of SQLite's virtual machine between two counts.
INSTRUCTIONS: Final = 20


def database_of(queue: BaseQueue) -> Database:
    """Return the database of a queue in a SQL store."""
    store = core_of(queue).store
    assert isinstance(store, SqlStore)
    return store.database


@contextmanager
def sent(queue: Queue) -> Iterator[list[object]]:
    """Collect the statements that a queue sends."""
    database = database_of(queue)
    original = database._execute
    seen: list[object] = []

    def execute(statement: Any, parameters: Any) -> Any:
        seen.append(statement.text)
        return original(statement, parameters)

    def note(_connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
        seen.append(statement)

    sa.event.listen(database.engine, "before_cursor_execute", note)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(database, "_execute", execute)
        yield seen
    sa.event.remove(database.engine, "before_cursor_execute", note)


@contextmanager
def sqlite_work(queue: Queue) -> Iterator[list[int]]:
    """Count the instructions, in hundreds, that SQLite executes on the queue's connection."""
    work = [0]

    def count() -> int:
        work[0] += 1
        return 0

    with database_of(queue).engine.connect() as connection:
        driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    driver.set_progress_handler(count, INSTRUCTIONS)
    yield work
    driver.set_progress_handler(None, 0)


def multiply(engine: sa.Engine, task_id: str, count: int, step_us: int = 1) -> None:
    """Write copies of a waiting task, each created a step after the one before it, by one statement."""
    tasks = schema("tasks", engine.dialect.name).tasks
    dialect = engine.dialect.name
    numbers = (
        "(WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < :count) SELECT n FROM n)"
    )
    changed = {"task_id": "task_id || '-' || number.n", "created_us": "created_us + number.n * :step_us"}
    if dialect == "mariadb":
        numbers = f"(SELECT CAST(seq AS SIGNED) AS n FROM seq_1_to_{count})"
        changed["task_id"] = "concat(task_id, '-', number.n)"
    names = [column.name for column in tasks.columns]
    values = ", ".join(changed.get(name, name) for name in names)
    statement = (
        f"INSERT INTO tasks ({', '.join(names)}) "
        f"SELECT {values} FROM tasks CROSS JOIN {numbers} AS number WHERE task_id = :task_id"
    )
    given = {"count": count, "step_us": step_us, "task_id": task_id}
    with engine.begin() as connection:
        connection.execute(sa.text(statement), given)


def vacuum(engine: sa.Engine) -> None:
    """Make PostgreSQL remove the rows that earlier tests deleted."""
    apart = sa.create_engine(engine.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with apart.connect() as connection:
        connection.execute(sa.text("VACUUM ANALYZE tasks"))


def rows_read(engine: sa.Engine, table: str = "tasks") -> int:
    """Return how many entries of its indexes, and rows from end to end, PostgreSQL has read of a table."""
    flush = sa.text("SELECT pg_stat_force_next_flush()")
    query = sa.text(
        "SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = :table)"
        " + (SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = :table)"
    ).bindparams(table=table)
    with engine.connect() as connection:
        connection.execute(flush)
    before, deadline = -1, time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with engine.connect() as connection:
            connection.execute(sa.text("SELECT pg_stat_clear_snapshot()"))
            read = int(connection.execute(query).scalar_one())
        if read == before:
            return read
        before = read
    pytest.fail("PostgreSQL's counts do not settle")
