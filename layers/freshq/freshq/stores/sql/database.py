"""Open the engine of a database, with its pool; run statements and transactions, with bounded retries."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

from freshq.errors import RefusedError, StoreError, TableMissing, Throttled, Unreachable
from freshq.model.forks import new_rlock
from freshq.policy.retry import Backoff, CallRetry
from freshq.stores.clocks import DatabaseClock, MachineClock
from freshq.stores.held import OPEN, OpenTransaction
from freshq.stores.sql import forks
from freshq.stores.sql.failures import is_read_only, translated
from freshq.stores.sql.pool import StatementPool
from freshq.stores.sql.url import (
    DEFAULT,
    DRIVERS,
    file_of,
    is_missing,
    left_to_freshq,
    parsed_url,
    place_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlalchemy.engine import ExceptionContext
    from sqlalchemy.pool import ConnectionPoolEntry

    from freshq.stores.sql.url import ConnectionLimits

    # Calls a function with a connection.
    Runner: TypeAlias = Callable[[Callable[[sa.Connection], Any]], Any]

# The database's time in microseconds; SQLite's has a resolution of milliseconds.
NOW_US: Final = {
    "sqlite": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000",
    "postgresql": "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    **dict.fromkeys(("mysql", "mariadb"), "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"),
}
T = TypeVar("T")
logger = logging.getLogger(__name__)
CALL_RETRY: Final = CallRetry(max_tries=5, backoff=Backoff(base_seconds=0.1, cap_seconds=2.0))
# The server's timeout is shorter than the driver's: its error says why, and keeps the connection usable.
GRACE_SECONDS: Final = 1.0
# A process that is stopped in a transaction, as on a suspended machine, keeps locks that others wait for.
# After this time PostgreSQL ends the transaction; the process repeats it once it goes on.
STOPPED_SECONDS: Final = 30.0
# SQLite counts whole milliseconds.
NO_WAIT_SECONDS: Final = 0.001
# With this execution option, every statement commits on its own.
AUTOCOMMIT: Final = "freshq_autocommit"
# Begins a transaction; the drivers do not, because all connections are in autocommit mode.
BEGIN: Final = {
    # IMMEDIATE, because a transaction that starts by reading cannot write once another one has written.
    "sqlite": "BEGIN IMMEDIATE",
    "postgresql": "BEGIN ISOLATION LEVEL READ COMMITTED",
    **dict.fromkeys(("mysql", "mariadb"), "START TRANSACTION"),
}
# PostgreSQL caches the plan of a frequent statement. A queue starts empty, and the best plan for an empty
# table is a full scan. Every statement of the store can use an index at any table size.
PLANNING: Final = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}
# Freshq's statements need these whatever the server, the database or the role sets. Statements of the caller
# keep the settings of the role.
RELIED_ON: Final = {
    "row_security": "off",  # a policy that hides tasks becomes an error
    "standard_conforming_strings": "on",
    "array_nulls": "on",  # or arrays hold the text NULL
}
# MariaDB's and MySQL's. Other values end SELECTs early or refuse them, refuse updates, begin a transaction
# after each commit, do not notice an id that is taken, or make tables without transactions.
SESSION_OF_MYSQL: Final = {
    "sql_select_limit": "18446744073709551615",
    "sql_big_selects": "1",
    "sql_safe_updates": "0",
    "completion_type": "0",
    "unique_checks": "1",
    "default_storage_engine": "InnoDB",
}
# Their limits of the time of a statement; the driver's answer timeout stays.
TIME_LIMITS: Final = {"mariadb": "max_statement_time", "mysql": "max_execution_time"}
# Pages (4 kB) of write-ahead log at which SQLite copies it into the file and waits for the disk. The default
# of 1,000 is reached every 140 tasks, and the copying takes a third of the time.
SQLITE_LOG_PAGES: Final = 10_000
# TCP keepalive: the operating system drops an idle connection after 25 s without an answer.
KEEPALIVE: Final = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
OWN_TRANSACTION: Final = (
    "this code runs inside queue.transaction(), which holds SQLite's only write lock, so it would wait for "
    "itself; put with connection=held.connection (a transactional Worker passes the connection to your "
    "function; with AsyncQueue, put in held.run), and call any other verb before or after the block"
)
OWN_TASK: Final = (
    "this code runs inside the queue.transaction() that holds it, so it would wait for itself; the block's "
    "end completes the task: set held.result, or raise Retry, Reject or Busy"
)
_ENGINES: Final[WeakSet[sa.Engine]] = WeakSet()


def open_engine(url: str | sa.URL, limits: ConnectionLimits = DEFAULT) -> sa.Engine:
    """Return an engine with the settings the store needs.

    Args:
        url: Address of the database, in SQLAlchemy's form; the driver may be left out.
        limits: The limits of its connections.

    Raises:
        ValueError: If the url is malformed, or the store does not support the database or the driver.
    """
    parsed = parsed_url(url)
    name = parsed.get_backend_name()
    given = parsed.drivername
    try:
        if given != DRIVERS[name] and (name != "sqlite" or parsed.get_dialect().is_async):
            msg = f"url: freshq cannot use the driver {given!r}; write {name}://, for AsyncQueue too"
            raise ValueError(msg)
        return _opened(parsed, limits)
    except (ImportError, NoSuchModuleError) as error:
        msg = f"url: the driver {given!r} is not installed ({error}); install freshq[sql] for {name}://"
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
    if name == "sqlite":
        event.listen(engine, "do_connect", _connect_after_fork)
    event.listen(engine, "connect", partial(_ON_CONNECT[name], limits=limits))
    event.listen(engine, "begin", _begin)
    event.listen(engine, "handle_error", _leave_standby)
    _ENGINES.add(engine)
    return engine


def _connect_bounded(_dialect: object, _record: object, arguments: Any, options: Any) -> Any:
    from freshq.stores.sql.postgresql import BoundedConnection  # noqa: PLC0415 - needs the driver

    return BoundedConnection.connect(*arguments, **options)


def _connect_after_fork(_dialect: object, _record: object, arguments: Any, _options: object) -> None:
    forks.refuse_inherited(arguments[0])


def _prepare_sqlite(connection: Any, _record: Any, limits: ConnectionLimits) -> None:
    connection.isolation_level = None  # autocommit
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={'FULL' if limits.durable else 'NORMAL'}")
    connection.execute(f"PRAGMA wal_autocheckpoint={SQLITE_LOG_PAGES}")


def _prepare_postgresql(connection: Any, _record: Any, limits: ConnectionLimits) -> None:
    connection.autocommit = True
    connection.answer_timeout_seconds = limits.answer_timeout_seconds
    connection.settings = {
        **PLANNING,
        **RELIED_ON,
        "statement_timeout": str(milliseconds(limits.answer_timeout_seconds)),
        "lock_timeout": str(milliseconds(limits.lock_timeout_seconds)),
        "idle_in_transaction_session_timeout": str(milliseconds(STOPPED_SECONDS)),
    }
    # Single statements take their isolation from the session; transactions name their own.
    settings = {**connection.settings, "default_transaction_isolation": "'read committed'"}
    connection.execute("; ".join(f"SET {name} = {value}" for name, value in settings.items()))
    if connection.is_pooled():
        connection.prepare_threshold = None


def _prepare_mysql(connection: Any, _record: Any, limits: ConnectionLimits) -> None:
    with connection.cursor() as cursor:
        # Locks only rows, not the gaps between them.
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        seconds = str(ceil(limits.lock_timeout_seconds))
        cursor.execute("SELECT VERSION()")
        kind = "mariadb" if "mariadb" in cursor.fetchone()[0].lower() else "mysql"
        own = {"innodb_lock_wait_timeout": seconds, "lock_wait_timeout": seconds, TIME_LIMITS[kind]: "0"}
        settings = {**SESSION_OF_MYSQL, **own}
        cursor.execute("SET SESSION " + ", ".join(f"{name}={value}" for name, value in settings.items()))


def milliseconds(seconds: float) -> int:
    """Return a time in whole milliseconds, at least 1: PostgreSQL takes 0 as no limit."""
    return max(1, round(seconds * 1000))


def _leave_standby(context: ExceptionContext) -> None:
    """Let all connections to a server that takes no writes reconnect: another server may be the primary."""
    if is_read_only(context.original_exception):
        context.is_disconnect = True


def _begin(connection: sa.Connection) -> None:
    if not connection.get_execution_options().get(AUTOCOMMIT):
        connection.exec_driver_sql(BEGIN[connection.dialect.name])


_ON_CONNECT: Final = {
    "sqlite": _prepare_sqlite,
    "postgresql": _prepare_postgresql,
    **dict.fromkeys(("mysql", "mariadb"), _prepare_mysql),
}


def _sqlite_arguments(limits: ConnectionLimits) -> dict[str, Any]:
    return {"timeout": limits.lock_timeout_seconds}


def _postgresql_arguments(limits: ConnectionLimits) -> dict[str, Any]:
    return KEEPALIVE | {
        "client_encoding": "utf8",
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
    **dict.fromkeys(("mysql", "mariadb"), _mysql_arguments),
}


@contextmanager
def default_settings(connection: sa.Connection) -> Iterator[None]:
    """Run the caller's own statements of a transaction with the server's planner settings and timeouts.

    Afterwards the settings of the session are restored by a rollback to a savepoint, or `use_own_settings`.
    """
    if connection.dialect.name != "postgresql":
        yield
        return
    driver: Any = connection.connection.driver_connection
    seconds = driver.answer_timeout_seconds
    connection.exec_driver_sql("; ".join(f"SET LOCAL {name} TO DEFAULT" for name in driver.settings))
    driver.answer_timeout_seconds = None
    try:
        yield
    finally:
        driver.answer_timeout_seconds = seconds


def use_own_settings(connection: sa.Connection) -> None:
    """Set the planner settings and timeouts of freshq for the rest of a transaction."""
    if connection.dialect.name == "postgresql":
        driver: Any = connection.connection.driver_connection
        settings = (f"SET LOCAL {name} = {value}" for name, value in driver.settings.items())
        connection.exec_driver_sql("; ".join(settings))


@contextmanager
def answer_within(connection: sa.Connection, seconds: float | None) -> Iterator[None]:
    """Change the timeout of a transaction's statements, on the server and in the driver; None lifts it."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        yield
        return
    name = "_read_timeout"  # PyMySQL has no public way to change it
    if connection.dialect.name == "postgresql":
        name = "answer_timeout_seconds"
        limit = 0 if seconds is None else milliseconds(seconds)
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {limit}; SET LOCAL lock_timeout = {limit}")
    if not hasattr(driver, name):  # an application's connection, without a timeout of freshq's
        yield
        return
    usual_seconds = getattr(driver, name)
    setattr(driver, name, seconds)
    try:
        yield
    finally:
        setattr(driver, name, usual_seconds)


class PreparedStatement:
    """A statement compiled once by SQLAlchemy and run by the driver.

    Passing its text to the driver halves the time of a claim on SQLite.

    Attributes:
        text: The SQL.
        only_reads: Whether it is a SELECT.
        returns_rows: Whether the statement returns rows.
        arguments: Converts parameters into the driver's form.
    """

    def __init__(
        self, statement: sa.Executable, dialect: sa.Dialect, columns: Sequence[str] | None = None
    ) -> None:
        """Compile a statement.

        Args:
            statement: The statement.
            dialect: The dialect of the database.
            columns: Names of the parameters, if they are passed as tuples.
        """
        if columns is not None and dialect.paramstyle == "pyformat":
            # Values without names: SQLAlchemy makes them for psycopg only in another dialect.
            dialect = copy(dialect)
            dialect.paramstyle, dialect.positional = "format", True
        compiled: Any = statement.compile(dialect=dialect)  # type: ignore[attr-defined] # of every Executable
        self.text = str(compiled)
        self.only_reads = statement.is_select
        is_returning = "RETURNING" in self.text if isinstance(statement, sa.TextClause) else False
        self.returns_rows = self.only_reads or is_returning or bool(compiled.effective_returning)
        self._columns = columns
        self._literals = {name: value for name, value in compiled.params.items() if value is not None}
        self._processors = _processors(compiled, dialect)
        order: Sequence[str] | None = compiled.positiontup
        self._in_order: Callable[[Any], Any] = dict if order is None else _getter(order)
        self.arguments: Callable[[Any], Any] = self._shortcut(order) or self._converted

    def _shortcut(self, order: Sequence[str] | None) -> Callable[[Any], Any] | None:
        """Return a built-in that can replace `_converted`; None if there is none."""
        if self._literals or self._processors:
            return None
        if order is None or self._columns is None:
            return self._in_order
        return _getter([self._columns.index(name) for name in order])

    def _converted(self, parameters: Any) -> Any:
        if self._columns is not None:
            parameters = dict(zip(self._columns, parameters, strict=True))
        given = {**self._literals, **parameters}
        for name, process in self._processors.items():
            given[name] = process(given[name])
        return self._in_order(given)


def _getter(keys: Sequence[Any]) -> Callable[[Any], Sequence[Any]]:
    """Return a function that returns the items of an object under the given keys, in order."""
    if len(keys) > 1:
        return itemgetter(*keys)
    return lambda given: [given[key] for key in keys]  # an `itemgetter` would return no sequence


def _processors(compiled: Any, dialect: sa.Dialect) -> dict[str, Callable[[Any], Any]]:
    """Return the functions that convert parameters for the driver, by the parameter's name."""
    found = {
        name: bind.type.dialect_impl(dialect).bind_processor(dialect) for name, bind in compiled.binds.items()
    }
    return {name: process for name, process in found.items() if process is not None}


def database_clock(
    dialect: str,
    read_scalar: Callable[[sa.Executable], Any],
    may_read: Callable[[], bool] = lambda: True,
) -> DatabaseClock | MachineClock:
    """Return the clock of a database.

    Args:
        dialect: Name of its dialect.
        read_scalar: Returns the only value of a SELECT.
        may_read: As in `DatabaseClock`.
    """
    if dialect == "sqlite":  # all processes share this machine's clock
        return MachineClock()
    statement = sa.text(f"SELECT {NOW_US[dialect]}")
    return DatabaseClock(lambda: int(read_scalar(statement)) / 1e6, may_read=may_read)


class StatementResult(NamedTuple):
    """The outcome of a statement.

    Attributes:
        rows: Returned rows.
        changed: Number of changed rows.
    """

    rows: Sequence[Any]
    changed: int


@dataclass
class _CallersTransaction:
    """The transaction of a caller, for one verb.

    Attributes:
        run: Calls a function with its connection.
        failure: Its first error.
    """

    run: Runner
    failure: StoreError | None = None


class _Here(threading.local):
    """What a thread does, and its connections outside the pool.

    Attributes:
        callers: Its caller's.
        own: What it uses instead of the common object.
        checks: Whether it checks the requirement.
    """

    callers: _CallersTransaction | None = None
    own: Database | None = None
    checks: bool = False


class Database:
    """Runs statements on a database, all through one bounded pool of connections. Thread-safe.

    It retries a call that fails for a transient reason, so every unit of work must be safe to run again after
    a commit whose reply was lost.

    Attributes:
        engine: The engine, with the pool.
        dialect: Name of its dialect.
        requirement: Called before the first statement; raises if the database lacks something the store
            needs.
    """

    requirement: Callable[[], object] | None = None

    def __init__(self, url: str | sa.URL | sa.Engine, table: str, limits: ConnectionLimits = DEFAULT) -> None:
        """Name the database; the first call connects.

        Args:
            url: Address of the database, or an engine made by `open_engine`, which its owner closes.
            table: Name of the table of tasks, for errors.
            limits: Limits of the connections; ignored for an engine, which has its own. After the answer
                timeout a call makes no further attempt.

        Raises:
            ValueError: If the address is wrong.
        """
        self._owns_engine = not isinstance(url, sa.Engine)
        engine = url if isinstance(url, sa.Engine) else open_engine(url, limits)
        self.engine = engine
        self.dialect = engine.dialect.name
        self._table = table
        self._limits = limits
        self._call_seconds = limits.answer_timeout_seconds
        self._here = _Here()
        if not isinstance(engine.pool, StatementPool):
            msg = "url: an engine must be one that freshq.stores.sql.database.open_engine made"
            raise TypeError(msg)
        self._place = place_of(engine.url)
        # A file has one writer. SQLite waits for another connection's lock by sleeping in growing steps,
        # which take several times as long as most statements, so only one thread at a time runs a statement
        # or a transaction of the store.
        self._lock = new_rlock() if self.dialect == "sqlite" else None
        self._lock_seconds = limits.lock_timeout_seconds
        self._autocommit = engine.execution_options(**{AUTOCOMMIT: True})
        self._must_exist = file_of(engine.url)
        self._errors: tuple[type[Exception], ...] = (SQLAlchemyError, engine.dialect.loaded_dbapi.Error)
        # On SQLite, retrying does not help if the file cannot be opened.
        self._transient = Throttled if self.dialect == "sqlite" else (Throttled, Unreachable)

    def allow_new_file(self) -> None:
        """Let SQLite create a missing file, because tables are about to be created."""
        self._must_exist = None

    def _check_file(self, file: str) -> None:
        """Raise if SQLite's file is missing: the first call would create an empty one."""
        if is_missing(file):
            msg = (
                f"table {self._table!r}: there is no file {file!r}; check the path, or make it by "
                "create_table(), `freshq table create` for tasks, `freshq match create` for resources"
            )
            raise TableMissing(msg)
        self._must_exist = None

    @cached_property
    def clock(self) -> DatabaseClock | MachineClock:
        """The database's time."""
        pool: Any = self.engine.pool
        return database_clock(
            self.dialect,
            lambda statement: self.read(lambda connection: connection.scalar(statement)),
            lambda: pool.has_free,
        )

    @contextmanager
    def through(self, run: Runner) -> Iterator[None]:
        """In this block, let this thread use the connection of a caller's transaction, and no other.

        Args:
            run: Calls a function with that connection.
        """
        before, self._here.callers = self._here.callers, _CallersTransaction(run)
        try:
            yield
        finally:
            self._here.callers = before

    @contextmanager
    def aside(self) -> Iterator[None]:
        """In this block, let this thread wait for no lock of SQLite.

        Otherwise it would hold the lock of this object while it waits for a caller's transaction, and that
        caller may need the lock before it can end the transaction.
        """
        if self.dialect != "sqlite":
            yield
            return
        limits = replace(self._limits, lock_timeout_seconds=NO_WAIT_SECONDS, max_connections=1)
        own = self._here.own = Database(self.engine.url, self._table, limits)
        try:
            yield
        finally:
            self._here.own = None
            own.close()

    def close(self) -> None:
        """Close the connections if this object opened the engine; later calls reconnect."""
        if self._owns_engine:
            self.engine.dispose()

    def rows(self, statement: sa.Executable, parameters: Mapping[str, Any]) -> Sequence[sa.Row[Any]]:
        """Return the rows of a SELECT.

        Raises:
            StoreError: If the database failed. This holds for all methods.
        """
        return self.read(lambda connection: connection.execute(statement, parameters).all())

    def row(self, statement: sa.Executable, parameters: Mapping[str, Any]) -> sa.Row[Any] | None:
        """Return the single row of a SELECT; None if there is none."""
        return self.read(lambda connection: connection.execute(statement, parameters).one_or_none())

    def changed(self, statement: sa.Executable, parameters: Mapping[str, Any]) -> int:
        """Run one UPDATE or DELETE; return the number of changed rows."""
        if OPEN.get():
            self._refuse_inside()
        return self.read(lambda connection: connection.execute(statement, parameters).rowcount)

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run statements that each commit on their own."""
        if (callers := self._here.callers) is not None:
            return self._run_through(callers, work)
        if (own := self._here.own) is not None:
            return own.read(work)

        def run() -> T:
            return self._run(self._autocommit, work)

        return self._retried(run, run)

    def _run_through(self, callers: _CallersTransaction, work: Callable[[sa.Connection], T]) -> T:
        """Run statements in the transaction of a caller; after an error nothing can be repeated there.

        PostgreSQL only rolls back after an error, even if the caller commits. So the first error is raised
        again, whoever handled it.
        """
        self.check_requirement()
        if callers.failure is not None:
            raise callers.failure
        try:
            with self.translating(OSError):  # some drivers for asyncio raise it when they connect
                answer: T = callers.run(work)
        except StoreError as error:
            callers.failure = error
            raise
        return answer

    def read_slowly(
        self, statement: sa.Executable, parameters: Mapping[str, Any], answer_seconds: float
    ) -> Sequence[sa.Row[Any]]:
        """Return the rows of a SELECT that reads many, in up to `answer_seconds`."""
        if self.dialect == "sqlite":  # it has no answer timeout, and a transaction blocks other writers
            return self.rows(statement, parameters)

        def read(connection: sa.Connection) -> Sequence[sa.Row[Any]]:
            with answer_within(connection, answer_seconds):
                return connection.execute(statement, parameters).all()

        return self.transaction(read)

    def transaction(
        self,
        work: Callable[[sa.Connection], T],
        committed_earlier: Callable[[sa.Connection], T] | None = None,
    ) -> T:
        """Run work in a transaction.

        Args:
            work: The unit of work.
            committed_earlier: For work that must not run twice: finds the answer of an earlier attempt that
                was committed while its reply was lost; falsy if there is none.
        """

        def repeat(connection: sa.Connection) -> T:
            found = committed_earlier(connection) if committed_earlier else None
            return found or work(connection)

        if (callers := self._here.callers) is not None:
            return self._run_through(callers, work)
        if (own := self._here.own) is not None:
            return own.transaction(work, committed_earlier)
        return self._retried(lambda: self._run_alone(work), lambda: self._run_alone(repeat))

    def execute(
        self,
        statement: PreparedStatement,
        parameters: Any,
        committed_earlier: PreparedStatement | None = None,
    ) -> StatementResult:
        """Run one prepared statement, which commits on its own.

        Args:
            statement: The statement.
            parameters: Its parameters by name, or a tuple if it was prepared for that.
            committed_earlier: As for `transaction`; selects the rows of an earlier attempt.
        """
        if self._must_exist is not None or self.requirement is not None:
            self._check()
        if (own := self._here.own) is not None:
            return own.execute(statement, parameters, committed_earlier)
        started = time.monotonic()
        try:
            return self._execute(statement, parameters)
        except self._errors as error:
            failure = error

        def repeat() -> StatementResult:
            if committed_earlier is not None and (found := self._execute(committed_earlier, parameters)).rows:
                return found
            return self._execute(statement, parameters)

        return self._repeated(repeat, failure, started)

    def execute_once(self, statement: PreparedStatement, parameters: Any) -> Sequence[Any]:
        """Run one prepared statement whose failure does no harm; return its rows.

        A failure is logged, and not repeated.
        """
        try:
            return self._execute(statement, parameters).rows
        except self._errors as error:
            logger.debug("a statement failed, and is not repeated: %s", self.translated(error))
            return ()

    def execute_many(self, statement: PreparedStatement, rows: Sequence[Any]) -> int:
        """Run a prepared statement once for each of several rows, in one transaction.

        Returns:
            The number of changed rows. After a lost reply the statement runs again for every row.
        """
        run = partial(self._write, partial(_write_each, statement, rows))
        return self._retried(run, run)

    def write_rows(
        self,
        write: Callable[[Any], int | None],
        insert: PreparedStatement,
        rows: Callable[[], Sequence[Any]],
    ) -> int | None:
        """Write rows in one transaction, by a function that uses the driver; return what it returned.

        Args:
            write: Writes the rows with a cursor of the driver; returns their number, or None if it cannot.
            insert: As in `execute_many`, for another try: the first one may have been committed.
            rows: Returns the rows for it.
        """

        def insert_each(cursor: Any) -> int:
            return _write_each(insert, rows(), cursor)

        return self._retried(partial(self._write, write), partial(self._write, insert_each))

    def check_requirement(self) -> None:
        """Call `requirement` until it has passed once, in each thread that comes before that."""
        if (requirement := self.requirement) is None or self._here.checks:
            return
        self._here.checks = True  # its own statements
        try:
            requirement()
            self.requirement = None
        finally:
            self._here.checks = False

    def translated(self, error: Exception) -> StoreError:
        """Translate an error of SQLAlchemy or the driver into one of freshq's."""
        return translated(error, self.dialect, self._table)

    @contextmanager
    def translating(self, *others: type[Exception]) -> Iterator[None]:
        """Turn errors of SQLAlchemy, the driver and others inside this block into freshq's."""
        try:
            yield
        except (*self._errors, *others) as error:
            raise self.translated(error) from error

    @staticmethod
    def _run(engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
        with engine.begin() as connection:
            return work(connection)

    def _run_alone(self, work: Callable[[sa.Connection], T]) -> T:
        if OPEN.get():
            self._refuse_inside()
        lock = self._lock
        # First the connection, as in `_execute`: a fork keeps all of them until nobody uses one.
        with self.engine.connect() as connection:
            is_held = lock is not None and lock.acquire(timeout=self._lock_seconds)
            try:
                with connection.begin():
                    return work(connection)
            finally:
                if lock is not None and is_held:
                    lock.release()

    def _execute(self, statement: PreparedStatement, parameters: Any) -> StatementResult:
        """Run a statement once; it commits on its own."""
        if OPEN.get() and not statement.only_reads:
            self._refuse_inside()
        pool: Any = self.engine.pool  # a StatementPool, as __init__ checked
        lock = self._lock
        entry, cursor = pool.borrow()
        is_held = lock is not None and lock.acquire(timeout=self._lock_seconds)
        try:
            cursor.execute(statement.text, statement.arguments(parameters))
            result = StatementResult(cursor.fetchall() if statement.returns_rows else (), cursor.rowcount)
        except BaseException as error:
            self._discard(entry, error)
            raise
        finally:
            if lock is not None and is_held:
                lock.release()
        pool.give_back(entry)
        return result

    def _write(self, write: Callable[[Any], T]) -> T:
        """Call a function with a cursor of the driver, in one transaction; return its answer."""
        if OPEN.get():
            self._refuse_inside()
        pool: Any = self.engine.pool  # a StatementPool, as __init__ checked
        lock = self._lock
        entry, cursor = pool.borrow()
        is_held = lock is not None and lock.acquire(timeout=self._lock_seconds)
        try:
            cursor.execute(BEGIN[self.dialect])
            answer = write(cursor)
            cursor.execute("COMMIT")
        except BaseException as error:
            self._discard(entry, error)
            raise
        finally:
            if lock is not None and is_held:
                lock.release()
        pool.give_back(entry)
        return answer

    @contextmanager
    def held_transaction(self) -> Iterator[tuple[sa.Connection, OpenTransaction]]:
        """Begin a transaction that lasts while the code of an application runs in it."""
        if OPEN.get():
            self._refuse_inside()
        pool: Any = self.engine.pool  # a StatementPool, as __init__ checked
        with self.engine.begin() as connection:
            transaction = OpenTransaction(self._place)
            pool.lent.add(transaction)
            try:
                yield connection, transaction
            finally:
                transaction.is_open = False
                pool.lent.discard(transaction)

    def _refuse_inside(self) -> None:
        """Raise if the caller holds SQLite's only write lock itself, and would wait for it in vain.

        Raises:
            RefusedError: If this code runs inside `queue.transaction()` of the same file.
        """
        if self.dialect == "sqlite" and any(each.is_in(self._place) for each in OPEN.get()):
            msg = f"table {self._table!r}: {OWN_TRANSACTION}"
            raise RefusedError(msg)

    def refuse_held(self, queue: str, task_id: str | None = None) -> None:
        """Raise if the caller holds the row of a task, and would wait for it in vain.

        Args:
            queue: The queue of the task.
            task_id: Its id; None: any task of the queue.

        Raises:
            RefusedError: If this code runs inside the `queue.transaction()` that holds the task.
        """
        self._refuse_inside()
        for each in OPEN.get():
            if each.holds(self._place, queue, task_id):
                held = each.task.task_id if each.task else ""
                msg = f"task {held!r}: {OWN_TASK}"
                raise RefusedError(msg, task_id=held)

    def _discard(self, entry: ConnectionPoolEntry, error: BaseException) -> None:
        """Close a connection whose state is unknown after an error or an interrupt."""
        pool: Any = self.engine.pool
        is_gone = isinstance(error, self._errors) and isinstance(self.translated(error), Unreachable)
        pool.discard(entry, error, all_others=is_gone)

    def _check(self) -> None:
        """Check before the first call that the database meets the store's requirement."""
        if self._must_exist is not None:
            self._check_file(self._must_exist)
        self.check_requirement()

    def _retried(self, run: Callable[[], T], repeat: Callable[[], T]) -> T:
        """Run a unit of work; after a failure, repeat it."""
        if self._must_exist is not None or self.requirement is not None:
            self._check()
        started = time.monotonic()
        try:
            return run()
        except self._errors as error:
            failure = error
        return self._repeated(repeat, failure, started)

    def _repeated(self, repeat: Callable[[], T], failure: Exception, started: float) -> T:
        """Retry a failed unit of work while its errors are transient.

        Args:
            repeat: Runs the work again.
            failure: Error of the first attempt.
            started: Start of the first attempt, on the monotonic clock.
        """
        uniform = random.random
        for attempt in range(1, CALL_RETRY.max_tries):
            error = self.translated(failure)
            if not isinstance(error, self._transient) or time.monotonic() - started >= self._call_seconds:
                raise error from failure
            time.sleep(CALL_RETRY.backoff.delay_seconds(attempt, uniform()))
            try:
                return repeat()
            except self._errors as again:
                failure = again
        raise self.translated(failure) from failure


def _write_each(statement: PreparedStatement, rows: Sequence[Any], cursor: Any) -> int:
    """Run a statement once for each of several rows; return the number of changed rows."""
    cursor.executemany(statement.text, [statement.arguments(row) for row in rows])
    changed: int = cursor.rowcount
    return changed


def _forget_connections() -> None:
    """Make a forked child open its own connections."""
    for engine in _ENGINES:
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_forget_connections)
