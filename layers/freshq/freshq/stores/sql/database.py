"""The connection to a database: its settings, its errors in freshq's words, and bounded retries."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from freshq.errors import FreshqError, StoreError, TableMissing, Throttled, Unreachable
from freshq.policy.retry import Backoff
from freshq.stores.sql.quick import Lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from freshq.stores.sql.quick import Prepared

T = TypeVar("T")

DRIVERS: Final = {
    "sqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
# A call that failed for a passing reason is sent again so often, with a pause between.
TRIES: Final = 5
RETRY_BACKOFF: Final = Backoff(base_seconds=0.1, cap_seconds=2.0)
CONNECT_SECONDS: Final = 5
ANSWER_SECONDS: Final = 60
LOCK_SECONDS: Final = 30
POOLED_CONNECTIONS: Final = 16
MORE_CONNECTIONS: Final = 48
# PostgreSQL keeps the plan of a statement that is sent often, and a queue begins empty: the best plan for
# an empty table reads all of it. Every statement of the store has an index to go by, at any size.
PLANNING: Final = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "plan_cache_mode": "force_generic_plan",
}

# SQLSTATE classes and codes of PostgreSQL: connection lost, server going down or not up yet.
GONE_STATES: Final = ("08", "57P01", "57P02", "57P03")
# Serialization failure and deadlock, too many connections, lock timeout.
BUSY_STATES: Final = ("40001", "40P01", "53300", "55P03")
MISSING_STATES: Final = ("42P01", "3F000")
# Error numbers of MariaDB and MySQL.
GONE_NUMBERS: Final = frozenset({0, 1053, 1927, 2002, 2003, 2006, 2013, 2014, 2055, 4031})
BUSY_NUMBERS: Final = frozenset({1040, 1205, 1213})
MISSING_NUMBERS: Final = frozenset({1146})


def open_engine(url: str | sa.URL) -> sa.Engine:
    """Return an engine with the settings that the store needs.

    Args:
        url: Where the database is, as SQLAlchemy writes it; the driver may be left out.

    Raises:
        ValueError: If it names no database that the store can use.
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
        return _OPENERS[name](parsed)
    except (ImportError, NoSuchModuleError) as error:
        msg = f"url: the driver of {parsed.drivername!r} is not installed ({error}); install freshq[sql]"
        raise ValueError(msg) from error


def _sqlite(url: sa.URL) -> sa.Engine:
    engine = sa.create_engine(
        url,
        connect_args={"timeout": LOCK_SECONDS},
        pool_size=POOLED_CONNECTIONS,
        max_overflow=MORE_CONNECTIONS,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:  # noqa: ANN401 - the driver's own
        connection.isolation_level = None  # the driver begins nothing by itself
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        if not connection.get_execution_options().get("freshq_single"):
            # A transaction that read first could not write after another had written.
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _postgresql(url: sa.URL) -> sa.Engine:
    engine = sa.create_engine(
        url,
        isolation_level="READ COMMITTED",
        connect_args={"connect_timeout": CONNECT_SECONDS},
        pool_size=POOLED_CONNECTIONS,
        max_overflow=MORE_CONNECTIONS,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:  # noqa: ANN401 - the driver's own
        connection.execute("; ".join(f"SET {name} = {value}" for name, value in PLANNING.items()))
        connection.commit()

    return engine


@contextmanager
def planned_as_usual(connection: sa.Connection) -> Iterator[None]:
    """Let the database plan somebody else's statements as it does for anybody, within a transaction."""
    if connection.dialect.name != "postgresql":
        yield
        return
    connection.exec_driver_sql("; ".join(f"SET LOCAL {name} TO DEFAULT" for name in PLANNING))
    yield
    # Not where it failed: what a savepoint's rollback undoes, it undoes too.
    connection.exec_driver_sql("; ".join(f"SET LOCAL {name} = {value}" for name, value in PLANNING.items()))


def _mysql(url: sa.URL) -> sa.Engine:
    return sa.create_engine(
        url.update_query_dict({"charset": "utf8mb4"}),
        isolation_level="READ COMMITTED",  # locks what it takes, not the gaps between
        connect_args={
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": ANSWER_SECONDS,
            "write_timeout": ANSWER_SECONDS,
            "init_command": "SET SESSION time_zone='+00:00', sql_mode='STRICT_ALL_TABLES'",
        },
        pool_size=POOLED_CONNECTIONS,
        max_overflow=MORE_CONNECTIONS,
    )


_OPENERS: Final = {"sqlite": _sqlite, "postgresql": _postgresql, "mysql": _mysql, "mariadb": _mysql}


class Database:
    """Runs work on a database: whole transactions, or single statements that commit by themselves."""

    def __init__(self, engine: sa.Engine, table: str) -> None:
        """Use an engine; the table is named in errors."""
        self.engine = engine
        self.dialect = engine.dialect.name
        self.table = table
        self._lines = Lines.of(engine)
        driver = engine.dialect.loaded_dbapi
        self._errors: tuple[type[Exception], ...] = (SQLAlchemyError, driver.Error)
        self._single = engine
        if self.dialect == "sqlite":
            self._single = engine.execution_options(freshq_single=True)
        elif self.dialect == "postgresql":
            self._single = engine.execution_options(isolation_level="AUTOCOMMIT")

    def single(self, work: Callable[[sa.Connection, bool], T]) -> T:
        """Run work that is one statement, or only reads: it needs no transaction around it.

        Args:
            work: Called with a connection, and whether an earlier try may have been carried out.

        Raises:
            StoreError: If it was not carried out.
        """
        return self._run(self._single, work)

    def transaction(self, work: Callable[[sa.Connection, bool], T]) -> T:
        """Run work in a transaction; as `single` otherwise."""
        return self._run(self.engine, work)

    def quick(
        self, prepared: Prepared, parameters: Mapping[str, Any], seek: Prepared | None = None
    ) -> tuple[list[Any], int]:
        """Run one statement; return its rows, and how many rows it changed.

        Args:
            prepared: The statement.
            parameters: Its parameters.
            seek: Finds the rows of an earlier try that was carried out, for a statement that must not
                be carried out again.

        Raises:
            StoreError: If it was not carried out.
        """

        def run(again: bool) -> tuple[list[Any], int]:  # noqa: FBT001 - as it is called
            if again and seek is not None:
                found, _changed = self._lines.execute(seek, parameters)
                if found:
                    return found, len(found)
            return self._lines.execute(prepared, parameters)

        return self._retried(run)

    def _run(self, engine: sa.Engine, work: Callable[[sa.Connection, bool], T]) -> T:
        def run(again: bool) -> T:  # noqa: FBT001 - as it is called
            with engine.begin() as connection:
                return work(connection, again)

        return self._retried(run)

    def _retried(self, run: Callable[[bool], T]) -> T:
        attempt = 0
        while True:
            attempt += 1
            try:
                return run(attempt > 1)
            except self._errors as error:
                translated = self.translated(error)
                if attempt == TRIES or not self._passes(translated):
                    raise translated from error
            time.sleep(RETRY_BACKOFF.delay_seconds(attempt, random.random()))  # noqa: S311 - jitter

    def _passes(self, error: FreshqError) -> bool:
        """Return whether the reason of an error may be gone in a moment; a missing file stays missing."""
        return isinstance(error, Throttled) or (isinstance(error, Unreachable) and self.dialect != "sqlite")

    def translated(self, error: Exception) -> FreshqError:
        """Return an error in freshq's words."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        reason = " ".join(str(cause or error).split())
        if isinstance(error, SQLAlchemyError) and not isinstance(error, DBAPIError):
            return StoreError(f"table {self.table!r}: {reason:.300}")
        gone = isinstance(error, DBAPIError) and error.connection_invalidated
        kind = Unreachable if gone else self._kind(cause)
        if kind is TableMissing:
            return TableMissing(
                f"table {self.table!r}: it does not exist; run `freshq sql migrate` or create_table()"
            )
        if kind is Unreachable:
            return Unreachable(
                f"table {self.table!r}: the database did not answer ({reason:.300}); "
                "check that it runs, and the address and credentials in the url"
            )
        if kind is Throttled:
            return Throttled(f"table {self.table!r}: the database was too busy ({reason:.300})")
        return StoreError(f"table {self.table!r}: {reason:.300}")

    def _kind(self, error: BaseException | None) -> type[StoreError]:
        if self.dialect == "sqlite":
            return _sqlite_kind(str(error))
        if self.dialect == "postgresql":
            return _postgresql_kind(error)
        return _mysql_kind(error)


def _sqlite_kind(reason: str) -> type[StoreError]:
    if "no such table" in reason:
        return TableMissing
    if "locked" in reason or "busy" in reason:
        return Throttled
    return Unreachable if "unable to open" in reason else StoreError


def _postgresql_kind(error: BaseException | None) -> type[StoreError]:
    state = getattr(error, "sqlstate", None)
    if state is None:  # the driver's own: the server was not reached, or has gone
        return Unreachable if type(error).__name__ == "OperationalError" else StoreError
    if state.startswith(GONE_STATES):
        return Unreachable
    if state.startswith(BUSY_STATES):
        return Throttled
    return TableMissing if state in MISSING_STATES else StoreError


def _mysql_kind(error: BaseException | None) -> type[StoreError]:
    arguments = getattr(error, "args", ())
    number = arguments[0] if arguments else None
    if number in GONE_NUMBERS:
        return Unreachable
    if number in BUSY_NUMBERS:
        return Throttled
    return TableMissing if number in MISSING_NUMBERS else StoreError
