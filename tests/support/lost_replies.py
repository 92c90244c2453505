"""Lose the driver's replies to committed transactions."""

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, Final

import psycopg
import pymysql  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa

from freshq.stores.sql.pool import StatementPool

# What each driver raises if the reply does not come, by dialect: freshq repeats the call.
ERRORS: Final[Mapping[str, Callable[[], Exception]]] = {
    "sqlite": lambda: sqlite3.OperationalError("database is locked"),
    "postgresql": lambda: psycopg.OperationalError("the connection is lost"),
    "mysql": lambda: pymysql.err.OperationalError(2013, "Lost connection"),
    "mariadb": lambda: pymysql.err.OperationalError(2013, "Lost connection"),
}
BEGINS: Final = ("BEGIN", "START TRANSACTION")
WRITES: Final = ("INSERT", "UPDATE", "DELETE", "WITH free")


class LostReplies:
    """Replaces the calls of an engine's driver by calls whose replies may get lost.

    A unit of work is a transaction, or a statement outside of one that writes. By default, the reply to the
    first try of each unit is lost, and the reply to the second try arrives.

    Attributes:
        transactions: How many transactions were committed.
        lost: How many replies were lost.
        loses_once: Lose only the next reply.
        lost_from: Lose the reply to every transaction from this one on, and no other; None: see above.
    """

    def __init__(self, engine: sa.Engine, patch: pytest.MonkeyPatch, *, loses: bool = True) -> None:
        self.transactions = 0
        self.lost = 0
        self.loses = loses
        self.loses_once = False
        self.lost_from: int | None = None
        self._error = ERRORS[engine.dialect.name]
        # The driver's connections with an open transaction.
        self._open: set[int] = set()
        self._answered: set[str] = set()
        self._commits_lost = False
        self._wrap(engine.dialect, patch)
        pool: Any = type(engine.pool)
        borrow = pool.borrow

        def lend(pool: StatementPool) -> tuple[Any, Any]:
            entry, cursor = borrow(pool)
            return entry, (_Cursor(cursor, self) if pool is engine.pool else cursor)

        patch.setattr(pool, "borrow", lend)

    def _wrap(self, dialect: Any, patch: pytest.MonkeyPatch) -> None:
        """Wrap the calls by which SQLAlchemy uses the driver."""
        for name in ("do_execute", "do_executemany", "do_execute_no_params"):
            call = getattr(dialect, name)

            def execute(cursor: Any, statement: str, *others: Any, call: Any = call) -> None:
                call(cursor, statement, *others)
                self.sent(cursor, statement, others[0])

            patch.setattr(dialect, name, execute)
        do_commit, do_rollback = dialect.do_commit, dialect.do_rollback

        def commit(connection: Any) -> None:
            do_commit(connection)
            self._committed(id(connection.dbapi_connection))

        def rollback(connection: Any) -> None:
            do_rollback(connection)
            self._open.discard(id(connection.dbapi_connection))

        patch.setattr(dialect, "do_commit", commit)
        patch.setattr(dialect, "do_rollback", rollback)

    def sent(self, cursor: Any, statement: str, parameters: object) -> None:
        """Note a statement that the database has carried out, and perhaps lose its reply.

        Raises:
            Exception: The driver's, for a lost reply.
        """
        connection = id(cursor.connection)
        if statement.startswith(BEGINS):
            self._open.add(connection)
        elif statement == "COMMIT":
            self._committed(connection)
        elif statement == "ROLLBACK":
            self._open.discard(connection)
        elif connection not in self._open and statement.startswith(WRITES):
            self._answer(cursor, f"{statement} {parameters}")

    def _committed(self, connection: int) -> None:
        if connection in self._open:
            self._open.discard(connection)
            self._answer_commit()

    def _answer(self, cursor: Any, unit: str) -> None:
        if unit in self._answered or self.lost_from is not None or not self.loses:
            return
        self._answered.add(unit)
        if cursor.description:
            cursor.fetchall()  # SQLite commits a statement when its last row is fetched
        self._lose()

    def _answer_commit(self) -> None:
        self.transactions += 1
        if not self.loses:
            return
        self._commits_lost = not self._commits_lost
        if self._commits_lost if self.lost_from is None else self.transactions >= self.lost_from:
            self._lose()

    def _lose(self) -> None:
        if not self.loses:
            return
        self.loses = not self.loses_once
        self.lost += 1
        raise self._error()


class _Cursor:
    """A cursor of the driver that `StatementPool` lent."""

    def __init__(self, cursor: Any, replies: LostReplies) -> None:
        self._cursor = cursor
        self._replies = replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, statement: str, parameters: Any = ()) -> None:
        self._cursor.execute(statement, parameters)
        self._replies.sent(self._cursor, statement, parameters)

    def executemany(self, statement: str, rows: Any) -> None:
        self._cursor.executemany(statement, rows)
        self._replies.sent(self._cursor, statement, rows)
