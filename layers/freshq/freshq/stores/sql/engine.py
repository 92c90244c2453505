"""Open an engine: the options of an address, connections, timeouts."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import partial
from math import ceil
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import Pool
from typing_extensions import override

from freshq.errors import quoted
from freshq.model.checks import checked_count, checked_seconds, without_password
from freshq.model.options import SqlOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sqlalchemy.engine.interfaces import DBAPICursor
    from sqlalchemy.pool import ConnectionPoolEntry

# The lease for which the default timeouts are made, and how short they become for shorter ones: less would
# fail calls that are only slow.
LEASE_SECONDS: Final = 60.0
MIN_TIMEOUT_SECONDS: Final = 2.0
DRIVERS: Final = {
    "sqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
OWN: Final = (*SqlOptions.__annotations__, "history", "history_seconds")
# What Python's driver and SQLite itself know; they take any other name without a word.
OF_SQLITE: Final = (
    *("timeout", "isolation_level", "detect_types", "check_same_thread", "cached_statements"),
    *("uri", "mode", "modeof", "cache", "vfs", "psow", "nolock", "immutable"),
)
# Python's own driver; another one of SQLite may take more options.
PYSQLITE: Final = ("sqlite", "sqlite+pysqlite")
# The drivers' own options for what freshq sets by its limits, and the type of their values.
LIMITS: Final[Mapping[str, Callable[[str], float]]] = {"timeout": float} | dict.fromkeys(
    (
        *("connect_timeout", "read_timeout", "write_timeout", "tcp_user_timeout"),
        *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
    ),
    int,
)
# Less than this alike, a name is rather one of the database's: "dbname" is no misspelt "name".
ALIKE: Final = 0.85
T = TypeVar("T")
# The server gives up first: its answer says why, and leaves the connection usable.
GRACE_SECONDS: Final = 1.0
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
# Probes of an idle connection: the operating system gives up after 25 s without an answer.
KEEPALIVE: Final = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
_ENGINES: Final[WeakSet[sa.Engine]] = WeakSet()


def place_of(url: sa.URL) -> tuple[object, ...]:
    """Return where a database is: two urls with equal answers mean the same tables.

    The user and the options are part of it, because they may choose the schema of PostgreSQL.
    """
    if url.get_backend_name() == "sqlite":
        return ("sqlite", os.path.realpath(url.database or ""))
    name = url.get_backend_name().replace("mariadb", "mysql")
    host, port = _server(url, name)
    return (name, host.lower(), port, url.database, url.username, url.query)


def _server(url: sa.URL, name: str) -> tuple[str, str]:
    """Return the host and the port of a server; where the url is silent, what its driver takes instead.

    PostgreSQL's takes them from the environment, and without a host there, a socket of this machine.
    """
    if name == "postgresql":
        host, port = os.environ.get("PGHOST", ""), os.environ.get("PGPORT") or "5432"
    else:
        host, port = "localhost", "3306"
    return url.host or host, str(url.port or port)


def file_of(url: sa.URL) -> str | None:
    """Return the path of a SQLite database from the root; None if SQLite interprets it, or for a server.

    SQLAlchemy too makes the path absolute when it opens an engine, so a later change of the folder of
    the process does not count.
    """
    file = url.database or ""
    is_path = url.get_backend_name() == "sqlite" and not file.startswith((":", "file:"))
    return os.path.abspath(file) if file and is_path else None  # noqa: PTH100 - exactly as SQLAlchemy does


def is_missing(file: str) -> bool:
    """Return whether there is certainly no such file; one that may not be looked for is left to SQLite."""
    try:
        Path(file).stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a path with a NUL
        return True
    except OSError:
        return False
    return False


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of the connections of one process.

    A call begins no further try once `answer_timeout_seconds` have passed, so it ends within twice that
    time plus the time to connect. With the default values that is well within the default lease.

    Attributes:
        connect_timeout_seconds: How long to wait for a connection. PostgreSQL's driver counts whole
            seconds, and at least 2.
        answer_timeout_seconds: How long to wait for the answer to a statement, and for a free connection.
        lock_timeout_seconds: How long a statement waits for a lock.
        max_connections: Maximum number of connections.
        durable: Whether SQLite waits for the disk at each commit. Without it a loss of power may undo the
            last commits; the file stays sound.
    """

    connect_timeout_seconds: float = 5.0
    answer_timeout_seconds: float = 15.0
    lock_timeout_seconds: float = 5.0
    max_connections: int = 10
    durable: bool = True

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: If a value is wrong.
        """
        for name in (field.name for field in fields(self) if field.name.endswith("_seconds")):
            checked_seconds(name, getattr(self, name), above_zero=True)
        checked_count("max_connections", self.max_connections)
        durable: Any = self.durable
        if durable not in (True, False):
            msg = f"durable: must be True or False (in an address, on or off), got {durable!r:.60}"
            raise ValueError(msg)


def connection_limits_for(lease_seconds: object, **given: Any) -> ConnectionLimits:
    """Return the limits of the connections of a queue.

    Args:
        lease_seconds: Length of its leases, not checked yet. The default timeouts are shortened in
            proportion if it is less than `LEASE_SECONDS`.
        **given: Values of `ConnectionLimits`; None for the default of a timeout.

    Raises:
        ValueError: If a value is wrong.
    """
    part = 1.0
    if isinstance(lease_seconds, int | float) and 0 < lease_seconds < LEASE_SECONDS:
        part = lease_seconds / LEASE_SECONDS
    values = {name: value for name, value in given.items() if value is not None}
    for name in (field.name for field in fields(ConnectionLimits) if field.name.endswith("_seconds")):
        values.setdefault(name, max(MIN_TIMEOUT_SECONDS, part * getattr(ConnectionLimits(), name)))
    return ConnectionLimits(**values)


def check_url_options(url: sa.URL) -> None:
    """Check that no option of a url was meant for freshq.

    Raises:
        ValueError: If one is an option of freshq or nearly so, or on SQLite unknown, or a limit and not
            a number.
    """
    for name, value in url.query.items():
        if name in OWN:
            msg = (
                f"url: {name} is an option of freshq, not of the database; pass it as an argument, {name}=..."
            )
            raise ValueError(msg)
        if (meant := _meant(name)) is not None:
            msg = f"url: {quoted(name)} is not an option of the database; did you mean freshq's {meant}?"
            raise ValueError(msg)
        if url.drivername in PYSQLITE and name not in OF_SQLITE:
            msg = f"url: SQLite has no option {quoted(name)}; use one of {', '.join(OF_SQLITE)}"
            raise ValueError(msg)
        if name in LIMITS:
            _check_limit(name, value)


def _check_limit(name: str, value: object) -> None:
    kind = LIMITS[name]
    try:
        kind(str(value))
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        msg = f"url: {name} must be {wanted}, got {quoted(value)}"
        raise ValueError(msg) from None


def left_to_freshq(url: sa.URL, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a connection without the limits that its url sets itself: those count."""
    return {name: value for name, value in arguments.items() if name not in url.query.keys() & LIMITS.keys()}


def _meant(name: str) -> str | None:
    """Return the option of freshq that a name is a part, or nearly the whole, of; None if there is none."""
    if name in LIMITS:
        return None
    name = name.lower().replace("-", "_")
    if name in OF_SQLITE:
        return None
    longer = (own for own in OWN if own == name or own.startswith(f"{name}_"))
    return next(longer, next(iter(get_close_matches(name, OWN, 1, ALIKE)), None))


def parsed_url(url: str | sa.URL) -> sa.URL:
    """Return an address with its driver.

    Raises:
        ValueError: If it is malformed, or the store does not support the database.
    """
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, TypeError, AttributeError, ValueError):
        given = without_password(str(url))
        msg = f"url: must look like sqlite:///tasks.db or postgresql://user@host:5432/name, got {given!r:.80}"
        raise ValueError(msg) from None
    name = parsed.get_backend_name()
    if name not in DRIVERS:
        also = "; postgres:// is not a scheme, write postgresql://" if name == "postgres" else ""
        msg = f"url: {name!r} is not supported; use one of {', '.join(DRIVERS)}{also}"
        raise ValueError(msg)
    check_url_options(parsed)
    if "@" in (parsed.host or ""):
        raise ValueError("url: the host contains '@'; write %40 for an '@' in the user or password")
    if "+" not in parsed.drivername:
        parsed = parsed.set(drivername=DRIVERS[name])
    if name == "sqlite" and parsed.database in (None, "", ":memory:"):
        msg = f"url: {without_password(str(url))!r} names no file; use sqlite:///tasks.db, or Queue.memory()"
        raise ValueError(msg)
    return parsed


DEFAULT: Final = ConnectionLimits()


class StatementPool(Pool):
    """A bounded pool for SQLAlchemy, which also lends bare cursors for single statements.

    A checkout through SQLAlchemy takes as long as some of the statements. `borrow` avoids it, and keeps
    one cursor per connection. The connection used last is reused first.
    """

    def __init__(
        self,
        creator: Any,
        pool_size: int = DEFAULT.max_connections,
        timeout: float = DEFAULT.answer_timeout_seconds,
        **options: Any,
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


def _connect_bounded(_dialect: object, _record: object, arguments: Any, options: Any) -> Any:

    from freshq.stores.sql.postgresql import BoundedConnection  # noqa: PLC0415 - needs the driver

    return BoundedConnection.connect(*arguments, **options)


def _prepare_sqlite(connection: Any, _record: Any, limits: ConnectionLimits) -> None:
    connection.isolation_level = None  # autocommit
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={'FULL' if limits.durable else 'NORMAL'}")
    connection.execute(f"PRAGMA wal_autocheckpoint={SQLITE_LOG_PAGES}")


def _prepare_postgresql(connection: Any, _record: Any, limits: ConnectionLimits) -> None:
    connection.autocommit = True
    connection.answer_timeout_seconds = limits.answer_timeout_seconds
    connection.settings = PLANNING | {
        "statement_timeout": str(milliseconds(limits.answer_timeout_seconds)),
        "lock_timeout": str(milliseconds(limits.lock_timeout_seconds)),
    }
    connection.execute("; ".join(f"SET {name} = {value}" for name, value in connection.settings.items()))


def _prepare_mysql(connection: Any, _record: Any, limits: ConnectionLimits) -> None:
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
