"""Opens engines: the settings that each database needs, and one bounded pool of connections."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import Pool
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine.interfaces import DBAPICursor
    from sqlalchemy.pool import ConnectionPoolEntry

DRIVERS: Final = {
    "sqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
CONNECT_SECONDS: Final = 5
ANSWER_SECONDS: Final = 60
LOCK_SECONDS: Final = 30
MAX_CONNECTIONS: Final = 10
POOL_SECONDS: Final = 30.0
# With this execution option, every statement commits by itself.
AUTOCOMMIT: Final = "freshq_autocommit"
# Begins a transaction. The drivers begin none: all connections are in autocommit mode.
BEGIN: Final = {
    # A transaction that reads first could not write after another one has written.
    "sqlite": "BEGIN IMMEDIATE",
    "postgresql": "BEGIN ISOLATION LEVEL READ COMMITTED",
    "mysql": "START TRANSACTION",
    "mariadb": "START TRANSACTION",
}
# PostgreSQL keeps the plan of a statement that is sent often, and a queue starts empty: the best plan for
# an empty table reads all of it. Every statement of the store can use an index, at any table size.
PLANNING: Final = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "plan_cache_mode": "force_generic_plan",
}
# SQLite copies its log into the file, and waits for the disk, each time the log has this many pages of
# 4 kB. The default, 1,000, is reached every 140 tasks and costs a third of the time.
SQLITE_LOG_PAGES: Final = 10_000

_ENGINES: Final[WeakSet[sa.Engine]] = WeakSet()


class StatementPool(Pool):
    """A bounded pool for SQLAlchemy, which also lends bare cursors for single statements.

    A checkout through SQLAlchemy takes as long as some of the statements. `borrow` avoids it, and keeps
    one cursor per connection. The connection used last is reused first.
    """

    def __init__(
        self,
        creator: Any,  # noqa: ANN401 - SQLAlchemy's interface
        pool_size: int = MAX_CONNECTIONS,
        timeout: float = POOL_SECONDS,
        **options: Any,  # noqa: ANN401 - SQLAlchemy's interface
    ) -> None:
        """Open no connection yet.

        Args:
            creator: Opens a connection.
            pool_size: Maximum number of connections.
            timeout: How long to wait for a free one, in seconds.
            **options: See SQLAlchemy's Pool.
        """
        super().__init__(creator, **options)
        self._size = pool_size
        self._timeout_seconds = timeout
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(pool_size):
            self._permits.put(None)
        self._idle: list[ConnectionPoolEntry] = []
        self._disposed = False

    @override
    def _do_get(self) -> ConnectionPoolEntry:
        try:
            self._permits.get(timeout=self._timeout_seconds)
        except Empty:
            msg = f"all {self._size} connections of this process were in use for {self._timeout_seconds} s"
            raise PoolTimeout(msg) from None
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            return self._create_connection()
        except BaseException:
            self._permits.put(None)
            raise

    @override
    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        if self._disposed:
            record.close()
        else:
            self._idle.append(record)
        self._permits.put(None)

    @override
    def dispose(self) -> None:
        self._disposed = True
        while self._idle:
            self._idle.pop().close()

    @override
    def recreate(self) -> StatementPool:
        return StatementPool(
            self._creator,
            pool_size=self._size,
            timeout=self._timeout_seconds,
            _dispatch=self.dispatch,
            dialect=self._dialect,
        )

    @override
    def status(self) -> str:
        return f"{self._size - self._permits.qsize()} of {self._size} connections in use"

    def borrow(self) -> tuple[ConnectionPoolEntry, DBAPICursor]:
        """Return a pool entry and the cursor of its connection; waits while all are in use."""
        entry: Any = self._do_get()
        try:
            connection = entry.get_connection()  # a new one if this one is no longer valid
            cursor = entry.info.get("cursor")
            if cursor is None:
                cursor = entry.info["cursor"] = connection.cursor()
        except BaseException:
            self._do_return_conn(entry)
            raise
        return entry, cursor

    give_back = _do_return_conn

    def discard(self, entry: ConnectionPoolEntry, error: BaseException, *, all_others: bool) -> None:
        """Close the connection of an entry and return the entry, to be reconnected when next used.

        Args:
            entry: The entry.
            error: What went wrong.
            all_others: Whether the server is gone: reconnect every other connection too.
        """
        if all_others:
            self._invalidate_time = time.time()
        entry.invalidate(error)
        self._do_return_conn(entry)


def open_engine(url: str | sa.URL) -> sa.Engine:
    """Return an engine with the settings that the store needs.

    Args:
        url: Address of the database, in SQLAlchemy's form; the driver may be left out.

    Raises:
        ValueError: If the url is malformed, or the store does not support the database.
    """
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, TypeError, AttributeError) as error:
        msg = f"url: must look like sqlite:///tasks.db or postgresql://user@host/name, got {url!r:.80}"
        raise ValueError(msg) from error
    name = parsed.get_backend_name()
    if name not in DRIVERS:
        msg = f"url: {name!r} is not supported; use one of {', '.join(DRIVERS)}"
        raise ValueError(msg)
    if "+" not in parsed.drivername:
        parsed = parsed.set(drivername=DRIVERS[name])
    if name == "sqlite" and parsed.database in (None, "", ":memory:"):
        msg = f"url: {str(url)!r} names no file; use sqlite:///tasks.db, or Queue.memory()"
        raise ValueError(msg)
    try:
        return _opened(parsed)
    except (ImportError, NoSuchModuleError) as error:
        msg = f"url: the driver of {parsed.drivername!r} is not installed ({error}); install freshq[sql]"
        raise ValueError(msg) from error


def _opened(url: sa.URL) -> sa.Engine:
    name = url.get_backend_name()
    if name in ("mysql", "mariadb"):
        url = url.update_query_dict({"charset": "utf8mb4"})
    options = {} if name == "sqlite" else {"isolation_level": "AUTOCOMMIT"}
    engine = sa.create_engine(
        url,
        connect_args=_CONNECT_ARGUMENTS[name],
        poolclass=StatementPool,
        pool_size=MAX_CONNECTIONS,
        **options,
    )
    event.listen(engine, "connect", _ON_CONNECT[name])
    event.listen(engine, "begin", _begin)
    _ENGINES.add(engine)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:  # noqa: ANN401 - the driver's own
    connection.isolation_level = None  # autocommit
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint={SQLITE_LOG_PAGES}")


def _prepare_postgresql(connection: Any, _record: Any) -> None:  # noqa: ANN401 - the driver's own
    connection.autocommit = True
    connection.execute("; ".join(f"SET {name} = {value}" for name, value in PLANNING.items()))


def _prepare_mysql(connection: Any, _record: Any) -> None:  # noqa: ANN401 - the driver's own
    with connection.cursor() as cursor:
        # Locks the rows that it takes, not the gaps between them.
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")


def _begin(connection: sa.Connection) -> None:
    if not connection.get_execution_options().get(AUTOCOMMIT):
        connection.exec_driver_sql(BEGIN[connection.dialect.name])


_ON_CONNECT: Final = {
    "sqlite": _prepare_sqlite,
    "postgresql": _prepare_postgresql,
    "mysql": _prepare_mysql,
    "mariadb": _prepare_mysql,
}
_MYSQL_ARGUMENTS: Final = {
    "connect_timeout": CONNECT_SECONDS,
    "read_timeout": ANSWER_SECONDS,
    "write_timeout": ANSWER_SECONDS,
    "init_command": "SET SESSION time_zone='+00:00', sql_mode='STRICT_ALL_TABLES'",
}
_CONNECT_ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "sqlite": {"timeout": LOCK_SECONDS},
    "postgresql": {"connect_timeout": CONNECT_SECONDS},
    "mysql": _MYSQL_ARGUMENTS,
    "mariadb": _MYSQL_ARGUMENTS,
}


def _forget_connections() -> None:
    """Open new connections in a forked child: the parent's are not its own."""
    for engine in _ENGINES:
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_forget_connections)


@contextmanager
def default_planning(connection: sa.Connection) -> Iterator[None]:
    """Run the caller's own statements of a transaction with PostgreSQL's default planner settings."""
    if connection.dialect.name != "postgresql":
        yield
        return
    connection.exec_driver_sql("; ".join(f"SET LOCAL {name} TO DEFAULT" for name in PLANNING))
    yield
    # Not after an error: the rollback to the savepoint restores the settings too.
    connection.exec_driver_sql("; ".join(f"SET LOCAL {name} = {value}" for name, value in PLANNING.items()))
