"""The pool of connections, and how errors of the drivers are translated."""

import re
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pymysql  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import TimeoutError as PoolTimeout

from freshq import Queue, StoreError
from freshq.errors import TableMissing, Throttled, Unreachable
from freshq.stores.sql import SqlStore, database
from freshq.stores.sql.database import Database, PreparedStatement, open_engine
from freshq.stores.sql.failures import RightsMissing, translated
from freshq.stores.sql.pool import StatementPool
from freshq.stores.sql.url import DEFAULT
from tests.support.statements import database_of


@pytest.fixture
def opened() -> list[sqlite3.Connection]:
    """Return the connections that the pool opened."""
    return []


@pytest.fixture
def pool(tmp_path: Path, opened: list[sqlite3.Connection]) -> Iterator[StatementPool]:
    """Return a pool of two connections that does not wait long."""

    def connect() -> sqlite3.Connection:
        opened.append(sqlite3.connect(tmp_path / "pool.db"))
        return opened[-1]

    pool = StatementPool(connect, pool_size=2, timeout=0.02)
    yield pool
    pool.dispose()


def is_open(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return False
    return True


class TestPool:
    def test_the_last_used_connection_is_reused_with_its_cursor(
        self, pool: StatementPool, opened: list[sqlite3.Connection]
    ) -> None:
        entry, cursor = pool.borrow()
        pool.give_back(entry)
        assert pool.borrow() == (entry, cursor)
        assert len(opened) == 1
        pool.give_back(entry)

    def test_it_is_bounded_for_statements_and_checkouts_together(self, pool: StatementPool) -> None:
        entry, _cursor = pool.borrow()
        other = pool.connect()
        assert pool.status() == "2 of 2 connections in use"
        with pytest.raises(PoolTimeout):
            pool.borrow()
        other.close()
        again, _cursor = pool.borrow()
        pool.give_back(again)
        pool.give_back(entry)
        assert pool.status() == "0 of 2 connections in use"

    def test_a_connection_that_cannot_be_opened_takes_no_place(self) -> None:
        def fail() -> sqlite3.Connection:
            raise sqlite3.OperationalError("unable to open database file")

        pool = StatementPool(fail, pool_size=1, timeout=0.02)
        for _ in range(3):
            with pytest.raises(sqlite3.OperationalError):
                pool.borrow()

    def test_a_discarded_connection_is_replaced(
        self, pool: StatementPool, opened: list[sqlite3.Connection]
    ) -> None:
        first, _cursor = pool.borrow()
        second, _cursor = pool.borrow()
        pool.give_back(second)
        pool.discard(first, RuntimeError("broken"), all_others=False)
        assert [is_open(connection) for connection in opened] == [False, True]
        first, _cursor = pool.borrow()
        assert len(opened) == 3
        pool.give_back(first)

    def test_when_the_server_is_gone_all_are_replaced(
        self, pool: StatementPool, opened: list[sqlite3.Connection]
    ) -> None:
        first, _cursor = pool.borrow()
        second, _cursor = pool.borrow()
        pool.give_back(second)
        pool.discard(first, RuntimeError("gone"), all_others=True)
        borrowed = [pool.borrow()[0] for _ in range(2)]
        assert [is_open(connection) for connection in opened] == [False, False, True, True]
        for entry in borrowed:
            pool.give_back(entry)

    def test_what_is_given_back_after_disposal_is_closed(
        self, pool: StatementPool, opened: list[sqlite3.Connection]
    ) -> None:
        entry, _cursor = pool.borrow()
        pool.dispose()
        pool.give_back(entry)
        assert not is_open(opened[0])

    def test_a_forked_child_leaves_the_parents_connections_alone(
        self, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = Queue.sql(sqlite_url)
        queue.put("work")
        parents = database_of(queue).engine.pool
        assert isinstance(parents, StatementPool)
        monkeypatch.setattr(database, "_ENGINES", [database_of(queue).engine])
        database._forget_connections()  # as after a fork
        assert database_of(queue).engine.pool is not parents
        assert [claim.task.payload for claim in queue.claim()] == ["work"]
        _entry, cursor = parents.borrow()
        assert cursor.execute("SELECT 1") is not None
        parents.give_back(_entry)
        parents.dispose()
        queue.close()

    def test_many_threads_share_few_connections(self, sqlite_url: str) -> None:
        queue = Queue.sql(sqlite_url)
        connected: list[object] = []
        sa.event.listen(database_of(queue).engine, "connect", lambda *made: connected.append(made))

        def put_and_run(number: int) -> None:
            queue.put(number)
            for claim in queue.claim():
                queue.complete(claim)

        with ThreadPoolExecutor(3 * DEFAULT.max_connections) as threads:
            list(threads.map(put_and_run, range(6 * DEFAULT.max_connections)))
        assert queue.stats().success == 6 * DEFAULT.max_connections
        assert 1 <= len(connected) <= DEFAULT.max_connections
        queue.close()

    def test_an_engine_that_freshq_did_not_open(self, sqlite_url: str) -> None:
        foreign = sa.create_engine(sqlite_url)
        with pytest.raises(TypeError):
            SqlStore(foreign)
        foreign.dispose()


def postgres_error(state: str | None) -> psycopg.Error:
    error = psycopg.OperationalError("reason")
    error.sqlstate = state
    return error


@pytest.mark.parametrize(
    ("dialect", "error", "kind"),
    [
        ("sqlite", sqlite3.OperationalError("no such table: tasks"), TableMissing),
        ("sqlite", sqlite3.OperationalError("database is locked"), Throttled),
        ("sqlite", sqlite3.OperationalError("unable to open database file"), Unreachable),
        ("sqlite", sqlite3.OperationalError("disk I/O error"), StoreError),
        ("postgresql", postgres_error(None), Unreachable),
        ("postgresql", postgres_error("57P01"), Unreachable),
        ("postgresql", psycopg.errors.ConnectionTimeout("expired"), Unreachable),
        ("postgresql", postgres_error("40P01"), Throttled),
        ("postgresql", postgres_error("57014"), Throttled),
        ("postgresql", postgres_error("42P01"), TableMissing),
        ("postgresql", postgres_error("42501"), RightsMissing),
        ("postgresql", postgres_error("22001"), StoreError),
        ("postgresql", psycopg.InterfaceError("closed"), StoreError),
        ("mysql", pymysql.OperationalError(2013, "lost"), Unreachable),
        ("mysql", pymysql.OperationalError(1213, "deadlock"), Throttled),
        ("mysql", pymysql.ProgrammingError(1146, "no table"), TableMissing),
        ("mysql", pymysql.OperationalError(1142, "command denied"), RightsMissing),
        ("mysql", pymysql.DataError(1406, "too long"), StoreError),
        ("mysql", pymysql.OperationalError(), StoreError),
        ("sqlite", PoolTimeout("all 10 connections of this process were in use for 30 s"), Throttled),
    ],
)
def test_errors_are_translated(dialect: str, error: Exception, kind: type[StoreError]) -> None:
    answer: Any = translated(error, dialect, "tasks")
    assert type(answer) is kind
    assert str(answer).startswith("table 'tasks': ")


@pytest.mark.parametrize(
    ("dialect", "error", "advice"),
    [
        (
            "sqlite",
            sqlite3.OperationalError("unable to open database file"),
            "check the path, and the rights",
        ),
        ("sqlite", sqlite3.OperationalError("attempt to write a readonly database"), "check the rights"),
        (
            "sqlite",
            sqlite3.DatabaseError("file is not a database"),
            "another program may have made this file",
        ),
        ("postgresql", psycopg.OperationalError('database "q" does not exist'), "create it first"),
        ("postgresql", psycopg.OperationalError("Connection refused"), "check that it runs"),
    ],
)
def test_errors_say_what_to_do(dialect: str, error: Exception, advice: str) -> None:
    answer = str(translated(error, dialect, "tasks"))
    assert advice in answer
    assert ("the file of the url" in answer) is (dialect == "sqlite")


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("postgresql+pg8000://localhost/q", "cannot use the driver 'postgresql+pg8000'; write postgresql://"),
        ("postgresql+nosuch://localhost/q", "write postgresql://"),
        ("mysql+mysqlconnector://localhost/q", "write mysql://"),
        ("sqlite+aiosqlite:///q.db", "write sqlite://"),
        ("sqlite+pysqlcipher:///q.db", "not installed"),
    ],
)
def test_other_drivers_are_refused(url: str, advice: str) -> None:
    with pytest.raises(ValueError, match=re.escape(advice)):
        open_engine(url)


def test_an_invalidated_connection_means_an_unreachable_database() -> None:
    lost = sa.exc.OperationalError("SELECT 1", {}, RuntimeError("lost"), connection_invalidated=True)
    assert type(translated(lost, "postgresql", "tasks")) is Unreachable


class TestRowsThatTheDriverWrites:
    """SQLite stands in for PostgreSQL, whose driver has COPY."""

    @pytest.fixture
    def rows(self, tmp_path: Path) -> Iterator[sa.Table]:
        self.database = Database(f"sqlite:///{tmp_path}/rows.db", "rows")
        self.database.allow_new_file()
        table = sa.Table("rows", sa.MetaData(), sa.Column("number", sa.Integer, primary_key=True))
        table.create(self.database.engine)
        statement = sa.insert(table).prefix_with("OR IGNORE").values(number=sa.bindparam("number"))
        self.insert = PreparedStatement(statement, self.database.engine.dialect, ("number",))
        yield table
        self.database.close()

    def written(self, rows: sa.Table) -> list[int]:
        return [row.number for row in self.database.rows(sa.select(rows).order_by(rows.c.number), {})]

    def test_one_transaction_writes_them(self, rows: sa.Table) -> None:
        def write(cursor: sqlite3.Cursor) -> int:
            return cursor.executemany("INSERT INTO rows VALUES (?)", [(1,), (2,)]).rowcount

        assert self.database.write_rows(write, self.insert, pytest.fail) == 2
        assert self.written(rows) == [1, 2]

    @pytest.mark.parametrize("committed", [False, True])
    def test_another_try_writes_what_is_missing(self, rows: sa.Table, committed: bool) -> None:
        def write(cursor: sqlite3.Cursor) -> int:
            cursor.execute("INSERT INTO rows VALUES (1)")
            if committed:
                cursor.execute("COMMIT")
            raise sqlite3.OperationalError("database is locked")

        assert self.database.write_rows(write, self.insert, lambda: [(1,), (2,)]) == (1 if committed else 2)
        assert self.written(rows) == [1, 2]

    def test_an_error_of_the_rows_leaves_nothing(self, rows: sa.Table) -> None:
        def write(cursor: sqlite3.Cursor) -> int:
            cursor.execute("INSERT INTO rows VALUES (1)")
            raise ValueError("of a row")

        with pytest.raises(ValueError, match="of a row"):
            self.database.write_rows(write, self.insert, pytest.fail)
        assert self.written(rows) == []
