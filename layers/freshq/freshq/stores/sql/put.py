"""Put tasks."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from typing_extensions import override

from freshq.errors import StoreError
from freshq.model.answers import PutOutcome
from freshq.model.lifecycle import UNHELD, new_token, truncated
from freshq.model.task import TaskStatus, Verb, advance
from freshq.stores.base import put_over
from freshq.stores.sql.lines import Part
from freshq.stores.sql.rows import outcome_of, remember, row_of, task_of
from freshq.stores.sql.statements import Statements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.errors import FreshqError
    from freshq.model.task import Task
    from freshq.stores.base import OnConflict
    from freshq.stores.sql.database import Database, PreparedStatement
    from freshq.stores.sql.schema import Schema

# Rows in one transaction: enough to pay for its commit, few enough to lock nobody out.
BATCH_ROWS: Final = 500
logger = logging.getLogger(__name__)


class PutStatements(Statements):
    """The statements of puts."""

    @cached_property
    def put(self) -> sa.Executable:
        """Insert tasks whose ids are free."""
        values: dict[str, Any] = {column.name: sa.bindparam(column.name) for column in self.tasks.c}
        insert: sa.Executable = self.insert_or_ignore(self.tasks).values(values)
        return insert.execution_options(preserve_rowcount=True)

    @cached_property
    def put_one(self) -> PreparedStatement:
        """As `put`."""
        return self.prepared(self.put)

    @cached_property
    def counts_new_rows(self) -> bool:
        """Whether the row count of `put` leaves out rows that existed. MariaDB counts them too."""
        return self.has_returning

    @cached_property
    def put_tokens(self) -> sa.Select[Any]:
        """The puts that some tasks remember, by id."""
        return sa.select(self.tasks.c.task_id, self.tasks.c.put_token).where(self.in_queue_by_id, self.listed)

    @cached_property
    def lock(self) -> sa.Select[Any]:
        """One task with the puts that it remembers, locked until the transaction ends."""
        return sa.select(*self.columns, self.tasks.c.put_token).where(*self.this_task).with_for_update()

    @cached_property
    def overwrite(self) -> sa.Update:
        """Put a task over one of the same id, unless that one has changed."""
        values: dict[str, Any] = {
            column.name: sa.bindparam(column.name)
            for column in self.tasks.c
            if column.name not in ("task_id", "queue")
        }
        unchanged = self.tasks.c.request_token == sa.bindparam("of_request_token")
        return sa.update(self.tasks).where(*self.this_task, unchanged).values(values)


class PutSignal:
    """Wakes the threads of this process that wait for a put."""

    def __init__(self) -> None:
        self.count = 0
        self._condition = threading.Condition()

    def notify(self) -> None:
        """Announce that a put was committed."""
        with self._condition:
            self.count += 1
            self._condition.notify_all()

    def wait(self, seen: int, seconds: float) -> None:
        """Wait until the count differs from `seen`, at most `seconds`."""
        with self._condition:
            self._condition.wait_for(lambda: self.count != seen, seconds)


class PutPart(Part):
    """Puts tasks into the table."""

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        super().__init__(database, schema, queue)
        self.put_sql = PutStatements.shared(schema, database.engine.dialect)
        self._put_signal = PutSignal()

    @override
    def put_count(self) -> int:
        return self._put_signal.count

    @override
    def wait_for_put(self, seen: int, seconds: float) -> None:
        self._put_signal.wait(seen, seconds)

    @override
    def insert(self, tasks: Sequence[Task]) -> list[bool | FreshqError]:
        if len(tasks) == 1:
            added = self._insert_one(tasks[0])
        else:
            rows = [row_of(task) for task in tasks]
            added = self._insert_batches(rows) if len(rows) > BATCH_ROWS else [*self._insert_batch(rows)]
        self._put_signal.notify()
        return added

    def _insert_one(self, task: Task) -> list[bool | FreshqError]:
        row = row_of(task)
        changed = self.database.execute(self.put_sql.put_one, row).changed
        if changed == 1 and self.put_sql.counts_new_rows:
            return [True]
        return [*self.database.read(lambda connection: self._added(connection, [row]))]

    def _insert_batches(self, rows: list[dict[str, Any]]) -> list[bool | FreshqError]:
        """Insert the rows by batches until one fails; its rows and those after it get the error."""
        added: list[bool | FreshqError] = []
        try:
            for start in range(0, len(rows), BATCH_ROWS):
                added += self._insert_batch(rows[start : start + BATCH_ROWS])
        except StoreError as error:
            added += [error] * (len(rows) - len(added))
        return added

    def _insert_batch(self, rows: list[dict[str, Any]]) -> list[bool]:
        changed = self.database.execute_many(self.put_sql.put_one, rows)
        if changed == len(rows) and self.put_sql.counts_new_rows:
            return [True] * len(rows)
        return self.database.read(lambda connection: self._added(connection, rows))

    @override
    def put_over(self, tasks: Sequence[Task], on_conflict: OnConflict) -> list[PutOutcome]:
        rows = [row_of(task) for task in tasks]
        outcomes = self.database.transaction(
            lambda connection: self._put(connection, tasks, rows, on_conflict)
        )
        self._put_signal.notify()
        return outcomes

    def put_in(
        self, tasks: Sequence[Task], on_conflict: OnConflict | None, connection: sa.Connection
    ) -> list[PutOutcome]:
        """Put tasks in the caller's transaction; return what each put did."""
        self.database.check_requirement()
        rows = [row_of(task) for task in tasks]
        try:
            return self._put(connection, tasks, rows, on_conflict)
        except SQLAlchemyError as error:
            raise self.database.translated(error) from error

    def _put(
        self,
        connection: sa.Connection,
        tasks: Sequence[Task],
        rows: list[dict[str, Any]],
        on_conflict: OnConflict | None,
    ) -> list[PutOutcome]:
        outcomes: list[PutOutcome] = []
        for task, row, is_new in zip(tasks, rows, self._insert(connection, rows), strict=True):
            if is_new:
                outcomes.append(PutOutcome.CREATED)
            elif on_conflict is None:
                outcomes.append(PutOutcome.DUPLICATE)
            else:
                outcomes.append(self._put_over(connection, task, row, on_conflict))
        return outcomes

    def _insert(self, connection: sa.Connection, rows: list[dict[str, Any]]) -> list[bool]:
        """Insert the rows whose ids are free; return for each whether it was inserted."""
        result = connection.execute(self.put_sql.put, rows if len(rows) > 1 else rows[0])
        if self.put_sql.counts_new_rows and result.rowcount == len(rows):
            return [True] * len(rows)
        return self._added(connection, rows)

    def _added(self, connection: sa.Connection, rows: list[dict[str, Any]]) -> list[bool]:
        """Return for each row whether this put made it, also when an earlier try did."""
        remembered: dict[str, str] = {}
        ids = [row["task_id"] for row in rows]
        for start in range(0, len(ids), BATCH_ROWS):
            found = connection.execute(
                self.put_sql.put_tokens,
                {"of_queue": rows[0]["queue"], "ids": ids[start : start + BATCH_ROWS]},
            )
            remembered |= {row.task_id: row.put_token for row in found}
        return [
            outcome_of(row["request_token"], remembered.get(row["task_id"], "")) is PutOutcome.CREATED
            for row in rows
        ]

    def _put_over(
        self, connection: sa.Connection, task: Task, row: dict[str, Any], on_conflict: OnConflict
    ) -> PutOutcome:
        """Put a task whose id was taken: over one that ended, or over a live one to be updated."""
        where = {"of_task_id": task.task_id, "of_queue": task.queue}
        found = connection.execute(self.put_sql.lock, where).one_or_none()
        if found is None:  # deleted a moment ago
            return PutOutcome.CREATED if self._insert(connection, [row])[0] else PutOutcome.DUPLICATE
        current = task_of(found)
        earlier = outcome_of(task.request_token, found.put_token)
        if earlier is not None:  # the reply to an earlier try was lost
            return earlier
        outcome = put_over(current, task, on_conflict)
        if outcome is PutOutcome.DUPLICATE:
            return PutOutcome.DUPLICATE
        new = row | {"put_token": remember(task.request_token, outcome, found.put_token)}
        connection.execute(self.put_sql.overwrite, new | where | {"of_request_token": current.request_token})
        return outcome


def as_dead_letter(task: Task, problem: str, now: float) -> Task:
    """Return a claimed task as a dead letter.

    Args:
        task: The task.
        problem: Why its payload cannot be decoded.
        now: Current time in seconds.
    """
    logger.error("task %s of queue %r is a dead letter: %s", task.task_id, task.queue, problem)
    failed = advance(task, Verb.FAIL, TaskStatus.FAILURE, now, error=truncated(problem), **UNHELD)
    return replace(failed, request_token=new_token())
