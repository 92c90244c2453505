"""Reads: one task, listings, counts, the oldest."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from typing_extensions import override

from freshq.model.task import TaskStatus
from freshq.stores.base import Stats
from freshq.stores.sql.part import Part, live_in_line
from freshq.stores.sql.rows import DUE, parse_line, task_of
from freshq.stores.sql.statements import Statements

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from freshq.model.task import Task
    from freshq.stores.lines import Line
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.schema import Schema

SCAN_ROWS: Final = 500
# An approximate count stops here.
COUNTED_ROWS: Final = 10_000


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
    def oldest_tasks(self) -> sa.Select[Any]:
        """The oldest live tasks of a line."""
        return (
            sa.select(*self.columns)
            .where(*self.live_in_line)
            .order_by(self.tasks.c.created_us, self.tasks.c.task_id)
            .limit(sa.bindparam("at_most"))
        )

    @cached_property
    def count_line(self) -> sa.Select[Any]:
        """The number of live tasks of a line, counted up to a limit."""
        one: sa.Label[int] = sa.literal_column("1").label("one")
        counted = sa.select(one).where(*self.live_in_line).limit(sa.bindparam("at_most")).subquery()
        return sa.select(sa.func.count()).select_from(counted)

    @cached_property
    def ends_of_line(self) -> sa.Select[Any]:
        """The creation times of the oldest and the newest live task of a line."""
        created = self.tasks.c.created_us
        return sa.select(sa.func.min(created), sa.func.max(created)).where(*self.live_in_line)

    @cached_property
    def agenda(self) -> sa.Select[Any]:
        """The status of held and delayed tasks, those that will be due first."""
        tasks = self.tasks
        return (
            sa.select(tasks.c.status, tasks.c.not_before_us)
            .where(self.in_queue, tasks.c.agenda == DUE)
            .order_by(tasks.c.due_us)
            .limit(sa.bindparam("page"))
        )


class Reads(Part):
    """Reads tasks."""

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        super().__init__(database, schema, queue)
        self.read_sql = ReadStatements(schema, database.engine.dialect)

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

    def lines_of(self, connection: sa.Connection, queue: str) -> list[Line]:
        """Return the lines of a queue that have a task."""
        return [parse_line(row[0]) for row in connection.execute(self.read_sql.lines, {"of_queue": queue})]

    @override
    def count_waiting(self, queue: str, created_after: float, at_most: int) -> dict[str | None, int]:
        def count(connection: sa.Connection) -> dict[str | None, int]:
            counts: Counter[str | None] = Counter()
            for line in self.lines_of(connection, queue):
                counts[line[1]] += self._count(connection, queue, line, created_after, at_most)
            return dict(counts)

        return self.database.read(count)

    def _count(
        self, connection: sa.Connection, queue: str, line: Line, created_after: float, at_most: int
    ) -> int:
        parameters = live_in_line(queue, line, created_after) | {"at_most": at_most}
        return int(connection.execute(self.read_sql.count_line, parameters).scalar_one())

    @override
    def oldest_created(self, queue: str, created_after: float) -> float | None:
        def oldest_of_lines(connection: sa.Connection) -> list[int | None]:
            return [
                connection.execute(
                    self.read_sql.oldest_of_line, live_in_line(queue, line, created_after)
                ).scalar()
                for line in self.lines_of(connection, queue)
            ]

        found = self.database.read(oldest_of_lines)
        return min((created_us / 1e6 for created_us in found if created_us is not None), default=None)

    @override
    def oldest_tasks(
        self, queue: str, created_after: float, count: int, groups: Collection[str | None] | None = None
    ) -> list[Task]:
        def oldest_of_lines(connection: sa.Connection) -> list[Task]:
            return [
                task_of(row)
                for line in self.lines_of(connection, queue)
                if groups is None or line[1] in groups
                for row in connection.execute(
                    self.read_sql.oldest_tasks,
                    live_in_line(queue, line, created_after) | {"at_most": count},
                )
            ]

        found = self.database.read(oldest_of_lines)
        return sorted(found, key=lambda task: (task.priority, task.created, task.task_id))[:count]

    @override
    def approximate_stats(self, queue: str, now: float, created_after: float) -> Stats:
        def look(connection: sa.Connection) -> Stats:
            lines = self.lines_of(connection, queue)
            pending = [self._count(connection, queue, line, created_after, COUNTED_ROWS) for line in lines]
            ends = [
                connection.execute(self.read_sql.ends_of_line, live_in_line(queue, line, created_after)).one()
                for line in lines
            ]
            agenda = connection.execute(self.read_sql.agenda, {"of_queue": queue, "page": COUNTED_ROWS}).all()
            return _stats(now, pending, ends, agenda)

        return self.database.read(look)


def _stats(now: float, pending: list[int], ends: Sequence[Any], agenda: Sequence[Any]) -> Stats:
    """Return stats from the counts and ends of each line, and a page of the agenda."""
    bounded = dict.fromkeys(("success", "failure", "cancelled", "shed"), "not counted")
    if COUNTED_ROWS in pending:
        bounded["pending"] = "at least"
    if len(agenda) == COUNTED_ROWS:
        bounded |= {"taken": "at least", "delayed": "at least"}
    taken = Counter(row.status for row in agenda)[TaskStatus.TAKEN]
    ages = [max(0.0, now - created_us / 1e6) for end in ends for created_us in end if created_us is not None]
    return Stats(
        pending=sum(pending),
        delayed=sum(row.status == TaskStatus.PENDING and row.not_before_us is not None for row in agenda),
        taken=taken,
        oldest_pending_seconds=max(ages, default=None),
        newest_pending_seconds=min(ages, default=None),
        bounded=bounded,
    )
