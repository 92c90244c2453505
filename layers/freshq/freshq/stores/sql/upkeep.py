"""Upkeep: finding what is due, and deleting what is past its retention."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from typing_extensions import override

from freshq.stores.base import Due
from freshq.stores.sql.part import Part
from freshq.stores.sql.rows import DUE, OVER, STALE, microseconds, task_of
from freshq.stores.sql.statements import Statements

if TYPE_CHECKING:
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.schema import Schema

PAGE_ROWS: Final = 200


class UpkeepStatements(Statements):
    """The statements of upkeep. None waits for a row that a transaction holds."""

    @cached_property
    def due(self) -> sa.Select[Any]:
        """Held and delayed tasks that are due, the earliest first."""
        return (
            sa.select(*self.columns)
            .where(self.in_queue, self.tasks.c.agenda == DUE, self._is_past)
            .order_by(self.tasks.c.due_us)
            .limit(sa.bindparam("page"))
            .with_for_update(skip_locked=True)
        )

    @cached_property
    def _is_past(self) -> sa.ColumnElement[bool]:
        return self.tasks.c.due_us <= sa.bindparam("now_us")

    @cached_property
    def next_due(self) -> sa.Select[Any]:
        """When the next delay or lease ends."""
        due_us = self.tasks.c.due_us
        later = (self.tasks.c.agenda == DUE, due_us > sa.bindparam("now_us"))
        return sa.select(due_us).where(self.in_queue, *later).order_by(due_us).limit(1)

    @cached_property
    def untidy(self) -> dict[str, sa.Select[Any]]:
        """The ids of tasks that are stale, or over; locked until the transaction ends."""
        tasks = self.tasks
        return {
            agenda: sa.select(tasks.c.task_id)
            .where(self.in_queue, tasks.c.agenda == agenda, self._is_past)
            .order_by(tasks.c.due_us)
            .limit(sa.bindparam("page"))
            .with_for_update(skip_locked=True)
            for agenda in (STALE, OVER)
        }

    @cached_property
    def leave_line(self) -> sa.Update:
        """Take stale tasks out of their lines, until their retention is over."""
        tasks = self.tasks
        values = {"line": sa.null(), "agenda": OVER, "due_us": tasks.c.expires * 1_000_000}
        still = (tasks.c.agenda == STALE, self._is_past)
        return sa.update(tasks).where(self.in_queue, self.listed, *still).values(values)

    @cached_property
    def forget(self) -> sa.Delete:
        """Delete tasks that are past their retention."""
        still = (self.tasks.c.agenda == OVER, self._is_past)
        return sa.delete(self.tasks).where(self.in_queue, self.listed, *still)

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
    def due(self, queue: str, now: float, limit: int) -> Due:
        parameters = {"of_queue": queue, "now_us": microseconds(now), "page": limit + 1}
        tasks = [task_of(row) for row in self.database.rows(self.upkeep_sql.due, parameters)]
        return Due(tasks[:limit], more=len(tasks) > limit)

    @override
    def tidy(self, queue: str, now: float, limit: int) -> int:
        parameters = {"of_queue": queue, "now_us": microseconds(now)}
        # A transaction, which on SQLite keeps other writers out, only if there is work for it.
        peek = parameters | {"page": 1}
        untidy = [agenda for agenda, page in self.upkeep_sql.untidy.items() if self.database.rows(page, peek)]
        if not untidy:
            return 0

        def tidy(connection: sa.Connection) -> int:
            tidied = 0
            for agenda in untidy:
                page = parameters | {"page": limit - tidied}
                ids = sorted(connection.execute(self.upkeep_sql.untidy[agenda], page).scalars())
                if ids:
                    change = self.upkeep_sql.leave_line if agenda == STALE else self.upkeep_sql.forget
                    connection.execute(change, parameters | {"ids": ids})
                tidied += len(ids)
            return tidied

        return self.database.transaction(tidy)

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
