"""Upkeep: finding what is due, and deleting what is past its retention."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from typing_extensions import override

from freshq.model.task import TaskStatus
from freshq.stores.sql.part import Part
from freshq.stores.sql.rows import microseconds, task_of
from freshq.stores.sql.statements import PENDING, TAKEN, Statements

if TYPE_CHECKING:
    from freshq.model.task import Task
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.schema import Schema

PAGE_ROWS: Final = 200


class UpkeepStatements(Statements):
    """The statements of upkeep."""

    @cached_property
    def due(self) -> sa.Select[Any]:
        """A page of the tasks that need attention, the earliest first."""
        return (
            sa.select(*self.columns, self.tasks.c.line)
            .where(self.in_queue, self._is_due)
            .order_by(self.tasks.c.due_us)
            .limit(sa.bindparam("page"))
        )

    @cached_property
    def _is_due(self) -> sa.ColumnElement[bool]:
        return self.tasks.c.due_us <= sa.bindparam("now_us")

    @cached_property
    def next_due(self) -> sa.Select[Any]:
        """When the next delay or lease ends. Claimable tasks are due at their deadline: not of interest."""
        tasks = self.tasks
        return (
            sa.select(tasks.c.due_us)
            .where(
                self.in_queue,
                tasks.c.due_us > sa.bindparam("now_us"),
                tasks.c.line.is_(None),
                tasks.c.status.in_((PENDING, TAKEN)),
            )
            .order_by(tasks.c.due_us)
            .limit(1)
        )

    @cached_property
    def leave_line(self) -> sa.Update:
        """Take stale tasks out of their lines, until their retention is over."""
        tasks = self.tasks
        stale = (tasks.c.line.is_not(None), tasks.c.deadline_us <= sa.bindparam("now_us"))
        return (
            sa.update(tasks)
            .where(self.in_queue, self.listed, *stale)
            .values(line=sa.null(), due_us=tasks.c.expires * 1_000_000)
        )

    @cached_property
    def forget(self) -> sa.Delete:
        """Delete tasks that are over and past their retention."""
        tasks = self.tasks
        over = (
            tasks.c.status != TAKEN,
            tasks.c.line.is_(None),
            sa.or_(tasks.c.status != PENDING, tasks.c.not_before_us.is_(None)),
        )
        return sa.delete(tasks).where(self.in_queue, self.listed, self._is_due, *over)

    @cached_property
    def page_of_ids(self) -> sa.Select[Any]:
        """Some ids of a queue."""
        return sa.select(self.tasks.c.task_id).where(self.in_queue).limit(sa.bindparam("page"))

    @cached_property
    def purge(self) -> sa.Delete:
        """Delete tasks, whatever their status."""
        return sa.delete(self.tasks).where(self.in_queue, self.listed)


class Upkeep(Part):
    """Finds what is due, and deletes."""

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        super().__init__(database, schema, queue)
        self.upkeep_sql = UpkeepStatements(schema, database.engine.dialect)

    @override
    def due(self, queue: str, now: float) -> list[Task]:
        parameters = {"of_queue": queue, "now_us": microseconds(now), "page": PAGE_ROWS}
        while rows := self.database.rows(self.upkeep_sql.due, parameters):
            found: list[Task] = []
            stale: list[str] = []
            old: list[str] = []
            for row in rows:
                task = task_of(row)
                if task.status is TaskStatus.TAKEN or task.delayed:
                    found.append(task)
                else:
                    (old if row.line is None else stale).append(task.task_id)
            self._tidy(queue, now, stale, old)
            if found:
                return found
        return []

    def _tidy(self, queue: str, now: float, stale: list[str], old: list[str]) -> None:
        """Take stale tasks out of their lines, and delete those past their retention."""

        def tidy(connection: sa.Connection) -> None:
            parameters = {"of_queue": queue, "now_us": microseconds(now)}
            if stale:
                connection.execute(self.upkeep_sql.leave_line, parameters | {"ids": sorted(stale)})
            if old:
                connection.execute(self.upkeep_sql.forget, parameters | {"ids": sorted(old)})

        if stale or old:
            self.database.transaction(tidy)

    @override
    def next_due(self, queue: str, now: float) -> float | None:
        row = self.database.row(self.upkeep_sql.next_due, {"of_queue": queue, "now_us": microseconds(now)})
        return None if row is None else row.due_us / 1e6

    @override
    def purge(self, queue: str) -> int:
        def purge_page(connection: sa.Connection) -> int:
            rows = connection.execute(self.upkeep_sql.page_of_ids, {"of_queue": queue, "page": PAGE_ROWS})
            ids = sorted(row.task_id for row in rows)
            if ids:
                connection.execute(self.upkeep_sql.purge, {"of_queue": queue, "ids": ids})
            return len(ids)

        purged = 0
        while page := self.database.transaction(purge_page):
            purged += page
        return purged
