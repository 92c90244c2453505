"""Reads: one task, and listings."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from typing_extensions import override

from freshq.stores.base import place_of
from freshq.stores.sql.lines import Part
from freshq.stores.sql.rows import microseconds, task_of
from freshq.stores.sql.statements import FAILURE, Statements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq.model.task import Task
    from freshq.stores.base import DeadPlace
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.schema import Schema

SCAN_ROWS: Final = 500
DEAD_ROWS: Final = 100
# Later than any task can be.
LATEST_US: Final = 2**62


class ReadStatements(Statements):
    """The statements of reads."""

    @cached_property
    def get(self) -> sa.Select[Any]:
        """One task of a queue."""
        return sa.select(*self.columns).where(*self.this_task)

    @cached_property
    def get_anywhere(self) -> sa.Select[Any]:
        """One task by its id, of the first queue that has it."""
        tasks = self.tasks
        by_id = tasks.c.task_id == sa.bindparam("of_task_id")
        return sa.select(*self.columns).where(by_id).order_by(tasks.c.queue).limit(1)

    @cached_property
    def scan(self) -> sa.Select[Any]:
        """A page of the tasks of a queue, by id."""
        return (
            sa.select(*self.columns)
            .where(self.in_queue, self.tasks.c.task_id > sa.bindparam("after"))
            .order_by(self.tasks.c.task_id)
            .limit(sa.bindparam("page"))
        )

    @cached_property
    def dead(self) -> sa.Select[Any]:
        """A page of the dead letters of a queue that follow a place, the last to die first."""
        dead_us, task_id = self.tasks.c.dead_us, self.tasks.c.task_id
        until = sa.bindparam("until_us", type_=sa.BigInteger)
        follows = sa.or_(dead_us < until, task_id < sa.bindparam("before_id", type_=task_id.type))
        return (
            sa.select(*self.columns)
            .where(self.in_queue, self.tasks.c.status == FAILURE, dead_us <= until, follows)
            .order_by(dead_us.desc(), task_id.desc())
            .limit(sa.bindparam("page"))
        )


class ReadPart(Part):
    """Reads tasks."""

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        super().__init__(database, schema, queue)
        self.read_sql = ReadStatements.shared(schema, database.engine.dialect)

    @override
    def get(self, task_id: str) -> Task | None:
        return None if "\0" in task_id else self.find(task_id, self.queue)

    def find(self, task_id: str, queue: str | None) -> Task | None:
        """Return a task by its id and queue; None for the queue: of any."""
        if queue is None:
            row = self.database.row(self.read_sql.get_anywhere, {"of_task_id": task_id})
        else:
            row = self.database.row(self.read_sql.get, {"of_task_id": task_id, "of_queue": queue})
        return None if row is None else task_of(row)

    @override
    def scan(self, queue: str, start_after: str | None = None) -> Iterator[Task]:
        after = start_after or ""
        while True:
            rows = self.database.rows(
                self.read_sql.scan, {"of_queue": queue, "after": after, "page": SCAN_ROWS}
            )
            yield from map(task_of, rows)
            if len(rows) < SCAN_ROWS:
                return
            after = rows[-1].task_id

    @override
    def dead(self, queue: str, start_after: DeadPlace | None = None) -> Iterator[Task]:
        place = start_after
        while True:
            until_us = LATEST_US if place is None else microseconds(place.dead_at)
            after = {"until_us": until_us, "before_id": "" if place is None else place.task_id}
            rows = self.database.rows(self.read_sql.dead, {"of_queue": queue, "page": DEAD_ROWS, **after})
            tasks = list(map(task_of, rows))
            yield from tasks
            if len(tasks) < DEAD_ROWS:
                return
            place = place_of(tasks[-1])
