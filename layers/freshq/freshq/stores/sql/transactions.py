"""A task held by the lock of its row, while its work is done in the same transaction."""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError
from typing_extensions import override

from freshq.errors import LeaseLost, StoreError
from freshq.model.checks import checked_error, checked_result
from freshq.model.outcomes import Busy, Reject, Retry
from freshq.model.task import TaskStatus
from freshq.stores.base import ConflictError, Guard, HeldTask, Transactions
from freshq.stores.sql.claims import as_taken
from freshq.stores.sql.database import planned_as_usual
from freshq.stores.sql.quarantine import buried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import sqlalchemy as sa

    from freshq.model.task import Task
    from freshq.stores.base import ClaimRequest, SettlingContext
    from freshq.stores.conflicts import OnConflict
    from freshq.stores.sql.store import SqlStore

logger = logging.getLogger(__name__)


@dataclass
class Held:
    """A task whose row is locked.

    Attributes:
        connection: Its transaction.
        task: The task as if it were claimed.
        guard: What the row must still be.
    """

    connection: sa.Connection
    task: Task
    guard: Guard


class SqlTransactions(Transactions):
    """The verbs that share a transaction with the caller's own statements."""

    def __init__(self, store: SqlStore) -> None:
        """Use the parts of a store."""
        self._store = store

    @override
    def put(
        self, tasks: Sequence[Task], on_conflict: OnConflict | None, connection: sa.Connection
    ) -> list[str]:
        return self._store.puts.put(tasks, on_conflict, connection)

    @override
    def hold(
        self,
        request: Callable[[], ClaimRequest],
        context: SettlingContext,
        shed_version: Callable[[Task], Task | None],
    ) -> AbstractContextManager[HeldTask | None]:
        return hold(self._store, request, context, shed_version)


@contextmanager
def hold(
    store: SqlStore,
    request: Callable[[], ClaimRequest],
    queue: SettlingContext,
    given_up: Callable[[Task], Task | None],
) -> Iterator[HeldTask | None]:
    """Hold the best task until the block ends, which settles it in the same transaction.

    What is given up before it is run is stored in the same transaction too. The block's writes are undone
    to a savepoint if it fails, so that the row stays locked until the failed attempt is recorded: nobody
    else can take the task in between.
    """
    with ExitStack() as stack:
        held = _begin(stack, store, request(), queue, given_up)
        if held is None:
            stack.close()  # what is due can only be brought in by a transaction of its own
            held = _begin(stack, store, request(), queue, given_up) if queue.recover() else None
        if held is None:
            yield None
            return
        work = HeldTask(held.task, held.connection)
        savepoint = held.connection.begin_nested()
        try:
            with planned_as_usual(held.connection):
                yield work
            work.result = checked_result(work.result, held.task.payload)
        except Exception as error:  # whatever it is, it is how the attempt ended
            _record(store, held, savepoint, _after(error, held.task, queue), stack)
            if not isinstance(error, Retry | Reject | Busy):
                raise
            return
        with _translated(store):
            if savepoint.is_active:
                savepoint.commit()
            work.settled = _complete(store, held, work, queue)
            stack.close()


def _begin(
    stack: ExitStack,
    store: SqlStore,
    request: ClaimRequest,
    queue: SettlingContext,
    given_up: Callable[[Task], Task | None],
) -> Held | None:
    """Open a transaction and lock the best task in it; None if there is none."""
    with _translated(store):
        connection = stack.enter_context(store.database.engine.begin())
        for each in store.claims.candidates(connection, request):
            guard = Guard(TaskStatus.PENDING, request_token=each.task.request_token)
            taken = as_taken(each, request).task
            if each.problem is not None:
                logger.error("task %s is a dead letter: %s", taken.task_id, each.problem)
                store.replace_in(buried(taken, each.problem, queue.now()), guard, connection)
                continue
            shed = given_up(taken)
            if shed is None:
                return Held(connection, taken, guard)
            store.replace_in(shed, guard, connection)
    return None


def _after(error: Exception, task: Task, queue: SettlingContext) -> Task:
    """Return what an exception makes of a task."""
    now, reason = queue.now(), checked_error(str(error) or type(error).__name__)
    if isinstance(error, Busy):
        return queue.lifecycle.released(task, now)
    if isinstance(error, Reject):
        return queue.lifecycle.failed(task, now, reason)
    delay_seconds = error.delay_seconds if isinstance(error, Retry) else None
    if not isinstance(error, Retry):
        reason = checked_error(f"{type(error).__name__}: {error}")
    return queue.lifecycle.retried(task, now, reason, delay_seconds, queue.uniform())


def _complete(store: SqlStore, held: Held, work: HeldTask, queue: SettlingContext) -> Task:
    """Store that the task is done.

    Raises:
        LeaseLost: If the block itself changed the task.
    """
    done = queue.lifecycle.completed(held.task, queue.now(), work.result)
    if not store.replace_in(done, held.guard, held.connection):
        raise LeaseLost(done.task_id, "it was changed within its own transaction")
    return done


def _record(
    store: SqlStore, held: Held, savepoint: sa.NestedTransaction, failed: Task, stack: ExitStack
) -> None:
    """Undo what the block wrote and store the failed attempt; if the connection is gone, by another."""
    try:
        if savepoint.is_active:
            savepoint.rollback()
        store.replace_in(failed, held.guard, held.connection)
        stack.close()
    except SQLAlchemyError as lost:
        logger.warning("task %s: its transaction is lost, recording apart", failed.task_id, exc_info=True)
        with suppress(SQLAlchemyError):  # it is logged; here the connection is only let go
            stack.__exit__(type(lost), lost, lost.__traceback__)
        _record_apart(store, held, failed)


def _record_apart(store: SqlStore, held: Held, failed: Task) -> None:
    try:
        store.replace(failed, held.guard)
    except (ConflictError, StoreError):
        logger.warning("task %s: the failed attempt was not recorded", failed.task_id, exc_info=True)


@contextmanager
def _translated(store: SqlStore) -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        raise store.database.translated(error) from error
