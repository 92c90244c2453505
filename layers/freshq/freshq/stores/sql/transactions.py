"""Verbs in the transaction of an application: puts, and holding a task while its work runs."""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from typing_extensions import override

from freshq.errors import LeaseLost, RefusedError, StoreError, Throttled, Unreachable
from freshq.model.answers import Busy, Reject, Retry, ends_chain, error_text, raised_in_run, traceback_text
from freshq.model.checks import checked_error
from freshq.model.codec import encoded
from freshq.model.lifecycle import claimed, new_token
from freshq.model.task import RunHandle, TaskStatus, handle_of, keep_clock
from freshq.model.validation import result_and_text
from freshq.stores.base import Conflict, Guard, LentConnection, Transactions
from freshq.stores.held import HeldTask
from freshq.stores.sql.database import default_settings, use_own_settings
from freshq.stores.sql.forks import refuse_inherited_by
from freshq.stores.sql.lines import SqlReader, is_in_time
from freshq.stores.sql.migrations import MIGRATIONS, apply_missing
from freshq.stores.sql.schema import schema
from freshq.stores.sql.tasks import as_dead_letter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from freshq.model.answers import PutOutcome
    from freshq.model.task import Task
    from freshq.stores.base import CallersConnection, OnConflict
    from freshq.stores.held import HeldSearch, SettlingContext
    from freshq.stores.sql.database import Runner
    from freshq.stores.sql.lines import SqlLines
    from freshq.stores.sql.tasks import SqlTasks

T = TypeVar("T")
ACCEPTED: Final = (
    "connection: must be a Connection or Session of SQLAlchemy, Django's connection, one of sqlite3, "
    "psycopg, PyMySQL or mysqlclient, or with AsyncQueue an AsyncConnection or AsyncSession"
)
ENDED: Final = (
    "the block ended the transaction that holds its task, by commit, rollback, close, or on MariaDB or MySQL "
    "by a statement such as CREATE TABLE: leave that to freshq, and use connection.begin_nested() for a part "
    "of the writes"
)
logger = logging.getLogger(__name__)
# Execution options that an application may give its connection, with values that leave freshq's statements
# alone. A map of schemas moves the application's tables, and PostgreSQL streams only the rows of a SELECT.
PLAIN: Final[Mapping[str, Any]] = {"schema_translate_map": None, "stream_results": False, "yield_per": None}
# The settings by which a server ends a session whose transaction waits for its run.
ENDS_IDLE: Final = {
    "sqlite": "limits",
    "postgresql": "idle_in_transaction_session_timeout or transaction_timeout",
    **dict.fromkeys(("mysql", "mariadb"), "wait_timeout, interactive_timeout or idle_transaction_timeout"),
}


@dataclass
class _LockedRow:
    """A task whose row is locked.

    Attributes:
        transaction: Context that commits when it is closed.
        connection: The connection of the transaction.
        task: The task as a claim would return it.
        guard: Condition that the row must still meet.
        process_id: The process that locked it.
    """

    transaction: ExitStack
    connection: sa.Connection
    task: Task
    guard: Guard
    process_id: int = field(default_factory=os.getpid)


class SqlTransactions(Transactions):
    """Verbs that share a transaction with the caller's own statements."""

    def __init__(self, tasks: SqlTasks, lines: SqlLines) -> None:
        """Use parts of a store.

        Args:
            tasks: Puts and changes tasks.
            lines: Finds tasks to hold.
        """
        self._tasks = tasks
        self._lines = lines

    @override
    def put(self, on_conflict: OnConflict | None) -> Callable[[Sequence[Task]], list[PutOutcome]]:
        return partial(self._tasks.put_in, on_conflict=on_conflict)

    @override
    @contextmanager
    def inside(self, connection: CallersConnection | LentConnection) -> Iterator[None]:
        database = self._tasks.database
        nothing = sa.delete(self._tasks.schema.tasks).where(sa.false())
        run = runner_of(connection, database.dialect, nothing)
        if database.dialect == "sqlite":
            run = _writing_first(run, nothing)
        with database.through(run):
            yield

    @override
    @contextmanager
    def hold(self, search: HeldSearch, context: SettlingContext) -> Iterator[HeldTask | None]:
        # A failed block rolls back to a savepoint: the row stays locked until the attempt is stored.
        with ExitStack() as transaction:
            row = self._locked_best(transaction, search, context)
            if row is None:
                yield None
                return
            held = HeldTask(row.task, row.connection)
            block = transaction.enter_context(ExitStack())
            with self._kept(transaction):
                savepoint = row.connection.begin_nested()
                block.enter_context(default_settings(row.connection))
                block.callback(row.connection.execution_options, **PLAIN)
            try:
                yield held
                _refuse_ended(row)
                result = encoded(held.codec or context.codec, held.result, "result")
                held.result, _text = result_and_text(result, row.task.payload)
            except Exception as error:  # any exception ends the attempt
                block.close()
                ended = _ended_by_server(row) if row.connection.invalidated else None
                held.failed = self._store_failed(row, savepoint, _after(error, row.task, context, ended))
                if not isinstance(error, Retry | Reject | Busy):
                    raise
                return
            with self._failing(held, row, savepoint, context):
                block.close()
                self._complete(held, row, context)

    @contextmanager
    def _failing(
        self, held: HeldTask, row: _LockedRow, savepoint: sa.NestedTransaction, context: SettlingContext
    ) -> Iterator[None]:
        """Translate errors of the database in this block, which commits; store the failed attempt.

        Otherwise the task would run again and again: after a statement that failed, though the application
        caught its error, PostgreSQL commits nothing, and a deferred constraint is checked by the commit.

        Raises:
            StoreError: The error.
        """
        try:
            with self._tasks.database.translating():
                yield
        except StoreError as error:
            held.settled = None
            # Of a transaction of the parent process, a child stores nothing.
            if isinstance(error, Unreachable | Throttled) or os.getpid() != row.process_id:
                _roll_back(row.transaction, error)
                self._note_lost(held, row, error, context)
            else:
                why = f"its transaction could not be committed: {_cause_of(error)}"
                if "savepoint" in why.lower():  # freshq's own is gone
                    why = f"{ENDED} ({_cause_of(error)})"
                held.failed = self._store_failed(row, savepoint, _after(error, row.task, context, why))
            raise

    def _locked_best(
        self, transaction: ExitStack, search: HeldSearch, context: SettlingContext
    ) -> _LockedRow | None:
        """Begin a transaction and lock the best task; if there is none, bring in due tasks and try again."""
        row, passed_over = self._lock_best(transaction, search, context)
        if row is not None:
            return row
        with self._kept(transaction):
            transaction.close()  # upkeep needs its own transactions
        cleared = self._lines.clear_stale(search.request().queue, context.now())
        if passed_over + cleared + context.bring_in_due():
            row, _ = self._lock_best(transaction, search, context)
        return row

    def _lock_best(
        self, transaction: ExitStack, search: HeldSearch, context: SettlingContext
    ) -> tuple[_LockedRow | None, int]:
        """Begin a transaction and lock the best task; shed or discard unfit tasks before it.

        Returns:
            The locked task (None if there is none), and the number of tasks shed or discarded.
        """
        passed_over: list[Task] = []
        locked: _LockedRow | None = None
        request = search.request()
        self._lines.horizon.empty_parts(request.queue)  # before this takes a connection
        with self._kept(transaction):
            connection, held = transaction.enter_context(self._tasks.database.held_transaction())
            reader = SqlReader(self._lines, request.queue, connection, request)
            for each in search.candidates(reader, request):
                moment = request.moment()
                if not is_in_time(each.task, moment):
                    continue
                taken = claimed(each.task, moment, request.token, new_token())
                if each.problem is not None:
                    changed: Task | None = as_dead_letter(taken, each.problem, context.now())
                else:
                    changed = search.shed_version(taken)
                if changed is None:
                    guard = Guard(TaskStatus.PENDING, request_token=each.task.request_token)
                    keep_clock(taken, context.now)
                    held.task = taken
                    locked = _LockedRow(transaction, connection, taken, guard)
                    break
                passed_over.append(changed)
            self._tasks.store_locked(passed_over, connection)
        return locked, len(passed_over)

    def _complete(self, held: HeldTask, row: _LockedRow, context: SettlingContext) -> None:
        """Store the task as completed, and commit."""
        use_own_settings(row.connection)
        while (unreleased := row.connection.get_nested_transaction()) is not None:
            unreleased.commit()  # a savepoint that the block left open, and then freshq's
        held.settled = self._store_completed(row, held.result, context)
        row.transaction.close()

    def _store_completed(self, row: _LockedRow, result: object, context: SettlingContext) -> Task:
        """Store the task as completed.

        Raises:
            LeaseLost: If the block itself changed the task.
        """
        done = context.lifecycle.completed(row.task, context.now(), result)
        if not self._tasks.replace_in(done, row.guard, row.connection):
            raise LeaseLost.of_task(done.task_id, "it was changed within its own transaction")
        return done

    def _store_failed(self, row: _LockedRow, savepoint: sa.NestedTransaction, failed: Task) -> Task | None:
        """Roll back the block's writes and store the failed attempt, on a new connection if this one is lost.

        Returns:
            The stored task; None if storing failed.
        """
        if os.getpid() != row.process_id:  # the attempt is the parent's
            _roll_back(row.transaction, RuntimeError(failed.error))
            return None
        try:
            if savepoint.is_active:
                savepoint.rollback()
            stored = self._tasks.replace_in(failed, row.guard, row.connection)
            row.transaction.close()
        except SQLAlchemyError as lost:
            logger.warning(
                "task %s: lost its transaction; recording the failed attempt in another",
                failed.task_id,
                exc_info=True,
            )
            _roll_back(row.transaction, lost)
            return self._stored_apart(row, failed)
        return failed if stored else None

    def _note_lost(self, held: HeldTask, row: _LockedRow, lost: StoreError, context: SettlingContext) -> None:
        """Store the attempt of a run whose transaction the server ended.

        After an outage this cannot be stored either. If the commit succeeded and only its reply was lost, the
        guard does not hold.

        Raises:
            Unreachable: The error that says so, if the session was lost.
        """
        if not getattr(lost.__cause__, "connection_invalidated", False):
            return
        problem = Unreachable(f"{_ended_by_server(row)} ({_cause_of(lost)})")
        held.failed = self._stored_apart(row, _after(problem, row.task, context, str(problem)))
        raise problem from lost

    def _stored_apart(self, row: _LockedRow, failed: Task) -> Task | None:
        try:
            self._tasks.replace(failed, row.guard)
        except (Conflict, StoreError):
            logger.warning("task %s: could not record the failed attempt", failed.task_id, exc_info=True)
            return None
        return failed

    @contextmanager
    def _kept(self, transaction: ExitStack) -> Iterator[None]:
        """Translate errors of the database in this block; roll back the transaction after one.

        Raises:
            StoreError: If the transaction is lost. The task is claimable as before.
        """
        try:
            with self._tasks.database.translating():
                yield
        except StoreError as error:
            _roll_back(transaction, error)
            raise


def _roll_back(transaction: ExitStack, error: Exception) -> None:
    """Release the connection of a transaction; if it is lost, the server rolls it back."""
    with suppress(SQLAlchemyError):
        transaction.__exit__(type(error), error, error.__traceback__)


def _refuse_ended(row: _LockedRow) -> None:
    """Refuse a transaction that the block has ended.

    Raises:
        RefusedError: If it has.
    """
    if not row.connection.in_transaction() and not row.connection.invalidated:
        raise RefusedError(ENDED)


def _ended_by_server(row: _LockedRow) -> str:
    """Return why a transaction has ended before its run, and what to do."""
    settings = ENDS_IDLE[row.connection.dialect.name]
    why = f"the server ended the transaction of the run, perhaps by its {settings}"
    return f"{why}; raise it, or run long work under a lease, without `transaction`"


def _cause_of(error: StoreError) -> str:
    """Return what the driver said, without the advice about addresses."""
    cause = getattr(error.__cause__, "orig", None) or error.__cause__
    return f"{' '.join(str(cause).split()):.200}"


def _after(error: Exception, task: Task, context: SettlingContext, ended: str | None) -> Task:
    """Return the next version of a task whose block raised an exception.

    Args:
        error: The exception.
        task: The task.
        context: The queue.
        ended: Why the transaction ended before its block; None if it did not.
    """
    lifecycle, now = context.lifecycle, context.now()
    reason = checked_error(error_text(error) or type(error).__name__)
    if isinstance(error, Busy):
        return lifecycle.released(task, now, error.delay_seconds)
    if ends_chain(error, task):
        return lifecycle.released(task, now, task.seconds_left(now) or 0.0)
    if isinstance(error, Reject):
        return lifecycle.failed(task, now, reason)
    if not isinstance(error, Retry):
        reason = checked_error(ended or f"{type(error).__name__}: {error_text(error)}")
    return _retried(error, task, context, reason)


def _retried(error: Exception, task: Task, context: SettlingContext, reason: str | None) -> Task:
    """Return the next version of a task that may be tried again, by what the handler of its kind says."""
    of_kind, uniform = handle_of(task) or RunHandle(), context.uniform()
    if isinstance(error, Retry):
        delay_seconds, told = error.delay_seconds, None
    else:
        delay_seconds, told = None, traceback_text(raised_in_run(error))
    if delay_seconds is None and of_kind.backoff is not None:
        delay_seconds = of_kind.backoff.delay_seconds(task.attempts, uniform)
    after, limit = (task, context.now(), reason, delay_seconds, uniform), of_kind.max_attempts
    return context.lifecycle.retried(*after, traceback=told, max_attempts=limit)


def runner_of(given: Any, dialect: str, nothing: sa.Delete) -> Runner:
    """Return how to run a function with the connection that a caller passed.

    Args:
        given: The connection, unchecked.
        dialect: Name of the dialect of the queue's database.
        nothing: Deletes no task: a session chooses its connection by a statement.

    Raises:
        ValueError: If it is not such a connection, or its database is of another kind.
    """
    if isinstance(given, LentConnection):
        _check_class(
            given.connection, (*_async_classes(), *_loaded("freshq.stores.sql.postgresql", "LentAsync"))
        )
        lent = given.run
        return lambda work: lent(partial(_call, work=work, dialect=dialect, nothing=nothing))
    if (found := _raw(given)) is not None:
        raw, driver = found
        _check_kind(driver.backend, dialect)
        return partial(_call_with_raw, raw, f"{dialect}+{driver.name}")
    _check_class(given, (sa.Connection, *_loaded("sqlalchemy.orm", "Session", "scoped_session")))
    return partial(_call, given, dialect=dialect, nothing=nothing)


def _writing_first(run: Runner, nothing: sa.Delete) -> Runner:
    """Return a runner that makes SQLite's transaction a writer before its first read, as a put would.

    A transaction that begins with a read can no longer write once another one has written. A connection that
    was open when this process was forked is refused.
    """
    wrote = False

    def begin(connection: sa.Connection) -> None:
        refuse_inherited_by(connection)
        connection.execute(nothing)

    def call(work: Callable[[sa.Connection], T]) -> T:
        nonlocal wrote
        if not wrote:
            run(begin)
            wrote = True
        answer: T = run(work)
        return answer

    return call


class _Lent:
    """A connection of a driver whose owner ends its transaction, and has set it up.

    SQLAlchemy would replace functions that the owner defined in SQLite, and add a handler of notices.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def close(self) -> None:
        """Leave the connection open."""

    commit = rollback = close

    def create_function(self, *_arguments: object, **_options: object) -> None:
        """Leave the connection unchanged."""

    add_notice_handler = create_function


class _Driver(NamedTuple):
    """A driver whose connections a put takes.

    Attributes:
        backend: The kind of database.
        module: The module of the class.
        connection: The class of its connections.
        name: SQLAlchemy's name for it.
    """

    backend: str
    module: str
    connection: str
    name: str


_DRIVERS: Final = (
    _Driver("sqlite", "sqlite3", "Connection", "pysqlite"),
    _Driver("postgresql", "psycopg", "Connection", "psycopg"),
    _Driver("mysql", "pymysql.connections", "Connection", "pymysql"),
    _Driver("mysql", "MySQLdb.connections", "Connection", "mysqldb"),
)
_LENT: Final = threading.local()


@cache
def _raw_engine(drivername: str) -> sa.Engine:
    """Return an engine on the connection that this thread lends."""
    options: dict[str, Any] = {"poolclass": sa.NullPool, "pool_reset_on_return": None}
    if drivername.startswith("postgresql"):
        options["use_native_hstore"] = False
    return sa.create_engine(f"{drivername}://", creator=lambda: _LENT.connection, **options)


def _raw(given: Any) -> tuple[Any, _Driver] | None:
    """Return the driver's connection, given it or Django's wrapper, and its driver; None for anything else.

    Raises:
        ValueError: If Django's is not in a transaction.
        TransactionManagementError: Django's, if its transaction can only be rolled back.
    """
    raw = given
    if isinstance(
        given,
        (
            *_loaded("django.utils.connection", "ConnectionProxy"),
            *_loaded("django.db.backends.base.base", "BaseDatabaseWrapper"),
        ),
    ):
        wrapper: Any = given
        if wrapper.get_autocommit():
            raise ValueError("connection: Django's is in no transaction; put inside transaction.atomic()")
        # Django checks this before its own queries. A rollback later would lose the task without an error.
        wrapper.validate_no_broken_transaction()
        raw = wrapper.connection
    found = (each for each in _DRIVERS if isinstance(raw, _loaded(each.module, each.connection)))
    driver = next(found, None)
    return None if driver is None else (raw, driver)


def migrate_with(raw: Any, table: str, dialect: str) -> list[str]:
    """Migrate the tables of a store through a connection of a driver, whose owner ends its transaction.

    Args:
        raw: The connection.
        table: Name of the table of tasks.
        dialect: Name of the dialect of its database; MariaDB and MySQL have different ones.

    Returns:
        The names of the applied migrations.

    Raises:
        ValueError: If the driver is not supported.
        StoreError: If the tables are newer than this program, or not freshq's.
    """
    found = _raw(raw)
    if found is None:
        msg = f"connection: must be of {', '.join(each.name for each in _DRIVERS)}, got {type(raw).__name__}"
        raise ValueError(msg)
    tables = schema(table, dialect)
    drivername = f"{dialect}+{found[1].name}"
    return _call_with_raw(raw, drivername, lambda connection: apply_missing(connection, tables, MIGRATIONS))


def _call_with_raw(raw: Any, drivername: str, work: Callable[[sa.Connection], T]) -> T:
    _LENT.connection = _Lent(raw)
    try:
        with _raw_engine(drivername).connect() as connection:
            return work(connection)
    finally:
        del _LENT.connection


def _call(given: Any, work: Callable[[sa.Connection], T], dialect: str, nothing: sa.Delete) -> T:
    """Call a function with a caller's connection, or with the connection that its session writes by."""
    connection: sa.Connection = given
    if not isinstance(given, sa.Connection):
        connection = given.connection(bind_arguments={"clause": nothing})
    _check_kind(connection.dialect.name, dialect)
    options = connection.get_execution_options()
    if not (callers := {name: value for name, value in options.items() if name in PLAIN}):
        return work(connection)
    connection.execution_options(**PLAIN)
    try:
        return work(connection)
    finally:
        connection.execution_options(**{**PLAIN, **callers})


def _check_class(connection: object, accepted: tuple[type, ...]) -> None:
    """Raise ValueError if a connection is of no accepted class."""
    if isinstance(connection, accepted):
        return
    advice = ""
    if isinstance(connection, (sa.Engine, *_loaded("sqlalchemy.ext.asyncio", "AsyncEngine"))):
        advice = "; begin a transaction: with engine.begin() as connection"
    elif isinstance(connection, (*_async_classes(), *_loaded("psycopg", "AsyncConnection"))):
        advice = "; await AsyncQueue.put(..., connection=...) instead"
    kind = type(connection)
    msg = f"{ACCEPTED}, got {kind.__module__}.{kind.__qualname__}{advice}"
    raise ValueError(msg)


def _async_classes() -> tuple[type, ...]:
    return _loaded("sqlalchemy.ext.asyncio", "AsyncConnection", "AsyncSession", "async_scoped_session")


def _loaded(module: str, *names: str) -> tuple[type, ...]:
    """Return classes of a module; empty if the module was not imported, and so there are no instances."""
    loaded = sys.modules.get(module)
    return () if loaded is None else tuple(getattr(loaded, name) for name in names)


def _check_kind(there: str, dialect: str) -> None:
    """Raise ValueError if the database of a connection is of another kind than the queue's."""
    if there.replace("mariadb", "mysql") != dialect.replace("mariadb", "mysql"):
        msg = (
            f"connection: is to a database of {there}, but the queue is in {dialect}; "
            "the table of the queue must be in the database of the connection"
        )
        raise ValueError(msg)
