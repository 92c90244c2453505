"""Opens engines: the settings that each database needs, and one bounded pool of connections."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from functools import partial
from math import ceil
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import Pool
from typing_extensions import override

from freshq.stores.sql.connection_limits import ConnectionLimits
from freshq.stores.sql.url_options import DRIVERS, left_to_freshq, parsed_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine.interfaces import DBAPICursor
    from sqlalchemy.pool import ConnectionPoolEntry

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
    "jit": "off",
}
# SQLite copies its log into the file, and waits for the disk, each time the log has this many pages of
# 4 kB. The default, 1,000, is reached every 140 tasks and costs a third of the time.
SQLITE_LOG_PAGES: Final = 10_000

DEFAULT: Final = ConnectionLimits()
# Probes of an idle connection: the operating system gives up after 25 s without an answer.
KEEPALIVE: Final = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}

_ENGINES: Final[WeakSet[sa.Engine]] = WeakSet()


class StatementPool(Pool):
    """A bounded pool for SQLAlchemy, which also lends bare cursors for single statements.

    A checkout through SQLAlchemy takes as long as some of the statements. `borrow` avoids it, and keeps
    one cursor per connection. The connection used last is reused first.
    """

    def __init__(
        self,
        creator: Any,  # noqa: ANN401 - SQLAlchemy's interface
        pool_size: int = DEFAULT.max_connections,
        timeout: float = DEFAULT.answer_timeout_seconds,
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
            used = f"all {self._size} connections of this process were in use for {self._timeout_seconds:g} s"
            msg = f"{used}; use fewer threads, or open the queue with a larger max_connections"
            raise PoolTimeout(msg) from None
        try:
            return self._idle.pop()
        except IndexError:
            pass  # no idle connection, so this makes one
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


def open_engine(url: str | sa.URL, limits: ConnectionLimits = DEFAULT) -> sa.Engine:
    """Return an engine with the settings that the store needs.

    Args:
        url: Address of the database, in SQLAlchemy's form; the driver may be left out.
        limits: The limits of its connections.

    Raises:
        ValueError: If the url is malformed, or the store does not support the database or the driver.
    """
    parsed = parsed_url(url)
    name = parsed.get_backend_name()
    try:
        if parsed.get_dialect().is_async:
            msg = f"url: {parsed.drivername!r} is for asyncio; write {name}:// instead, for AsyncQueue too"
            raise ValueError(msg)
        return _opened(parsed, limits)
    except (ImportError, NoSuchModuleError) as error:
        is_own = parsed.drivername == DRIVERS[name]
        advice = "install freshq[sql]" if is_own else f"write {name}:// for the driver of freshq[sql]"
        msg = f"url: the driver of {parsed.drivername!r} is not installed ({error}); {advice}"
        raise ValueError(msg) from error


def _opened(url: sa.URL, limits: ConnectionLimits) -> sa.Engine:
    name = url.get_backend_name()
    if name in ("mysql", "mariadb"):
        url = url.update_query_dict({"charset": "utf8mb4"})
    options = {} if name == "sqlite" else {"isolation_level": "AUTOCOMMIT"}
    engine = sa.create_engine(
        url,
        connect_args=left_to_freshq(url, _CONNECT_ARGUMENTS[name](limits)),
        poolclass=StatementPool,
        pool_size=limits.max_connections,
        pool_timeout=limits.answer_timeout_seconds,
        **options,
    )
    if name == "postgresql":
        event.listen(engine, "do_connect", _connect_bounded)
    event.listen(engine, "connect", partial(_ON_CONNECT[name], limits=limits))
    event.listen(engine, "begin", _begin)
    _ENGINES.add(engine)
    return engine


def _connect_bounded(_dialect: object, _record: object, arguments: Any, options: Any) -> Any:  # noqa: ANN401 - SQLAlchemy's interface
    from freshq.stores.sql.bounded_postgresql import BoundedConnection  # noqa: PLC0415 - needs the driver

    return BoundedConnection.connect(*arguments, **options)


def _prepare_sqlite(connection: Any, _record: Any, limits: ConnectionLimits) -> None:  # noqa: ANN401 - the driver's own
    connection.isolation_level = None  # autocommit
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={'FULL' if limits.durable else 'NORMAL'}")
    connection.execute(f"PRAGMA wal_autocheckpoint={SQLITE_LOG_PAGES}")


def _prepare_postgresql(connection: Any, _record: Any, limits: ConnectionLimits) -> None:  # noqa: ANN401 - the driver's own
    connection.autocommit = True
    connection.answer_timeout_seconds = limits.answer_timeout_seconds
    connection.settings = PLANNING | {
        "statement_timeout": str(milliseconds(limits.answer_timeout_seconds)),
        "lock_timeout": str(milliseconds(limits.lock_timeout_seconds)),
    }
    connection.execute("; ".join(f"SET {name} = {value}" for name, value in connection.settings.items()))


def _prepare_mysql(connection: Any, _record: Any, limits: ConnectionLimits) -> None:  # noqa: ANN401 - the driver's own
    with connection.cursor() as cursor:
        # Locks the rows that it takes, not the gaps between them.
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        seconds = ceil(limits.lock_timeout_seconds)
        cursor.execute(f"SET SESSION innodb_lock_wait_timeout={seconds}, lock_wait_timeout={seconds}")


def milliseconds(seconds: float) -> int:
    """Return a time in whole milliseconds, at least 1: to PostgreSQL, 0 means for ever."""
    return max(1, round(seconds * 1000))


def _begin(connection: sa.Connection) -> None:
    if not connection.get_execution_options().get(AUTOCOMMIT):
        connection.exec_driver_sql(BEGIN[connection.dialect.name])


_ON_CONNECT: Final = {
    "sqlite": _prepare_sqlite,
    "postgresql": _prepare_postgresql,
    "mysql": _prepare_mysql,
    "mariadb": _prepare_mysql,
}


def _sqlite_arguments(limits: ConnectionLimits) -> dict[str, Any]:
    return {"timeout": limits.lock_timeout_seconds}


def _postgresql_arguments(limits: ConnectionLimits) -> dict[str, Any]:
    return KEEPALIVE | {
        "connect_timeout": max(2, ceil(limits.connect_timeout_seconds)),
        "tcp_user_timeout": milliseconds(limits.answer_timeout_seconds),
    }


def _mysql_arguments(limits: ConnectionLimits) -> dict[str, Any]:
    return {
        "connect_timeout": limits.connect_timeout_seconds,
        "read_timeout": limits.answer_timeout_seconds,
        "write_timeout": limits.answer_timeout_seconds,
        "init_command": "SET SESSION time_zone='+00:00', sql_mode='STRICT_ALL_TABLES'",
    }


_CONNECT_ARGUMENTS: Final = {
    "sqlite": _sqlite_arguments,
    "postgresql": _postgresql_arguments,
    "mysql": _mysql_arguments,
    "mariadb": _mysql_arguments,
}


def _forget_connections() -> None:
    """Open new connections in a forked child: the parent's are not its own."""
    for engine in _ENGINES:
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_forget_connections)


@contextmanager
def default_settings(connection: sa.Connection) -> Iterator[None]:
    """Run the caller's own statements of a transaction with the server's planner settings and timeouts."""
    if connection.dialect.name != "postgresql":
        yield
        return
    driver: Any = connection.connection.driver_connection
    seconds, settings = driver.answer_timeout_seconds, driver.settings
    connection.exec_driver_sql("; ".join(f"SET LOCAL {name} TO DEFAULT" for name in settings))
    driver.answer_timeout_seconds = None
    try:
        yield
    finally:
        driver.answer_timeout_seconds = seconds
    # Not after an error: the rollback to the savepoint restores the settings too.
    connection.exec_driver_sql("; ".join(f"SET LOCAL {name} = {value}" for name, value in settings.items()))


@contextmanager
def no_timeouts(connection: sa.Connection) -> Iterator[None]:
    """Let the statements of a transaction take any time, on the server and in the driver."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        yield
        return
    name = "_read_timeout"  # PyMySQL has no other way to change it
    if connection.dialect.name == "postgresql":
        name = "answer_timeout_seconds"
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0")
    seconds = getattr(driver, name)
    setattr(driver, name, None)
    try:
        yield
    finally:
        setattr(driver, name, seconds)
