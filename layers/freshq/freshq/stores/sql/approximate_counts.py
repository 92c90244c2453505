"""Approximate stats: each count stops at a limit, and says so."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from typing_extensions import override

from freshq.model.task import TaskStatus
from freshq.stores.base import Stats
from freshq.stores.sql.line_window import FEW_LINES
from freshq.stores.sql.rows import DUE, OVER, STALE, microseconds
from freshq.stores.sql.statements import Statements
from freshq.stores.sql.waiting import COUNTED_ROWS, LOOKED_ROWS, Waiting, end_of_line, on_agenda

if TYPE_CHECKING:
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.schema import Schema


class CountStatements(Statements):
    """The statements that count tasks by status."""

    @cached_property
    def statuses(self) -> dict[str, sa.Select[Any]]:
        """The number of tasks by status, by what they need attention for; up to `page` of them."""
        return {agenda: self._statuses(agenda) for agenda in (DUE, OVER, STALE)}

    def _statuses(self, agenda: str) -> sa.Select[Any]:
        tasks = self.tasks
        page = sa.select(tasks.c.status).where(self.in_queue, tasks.c.agenda == agenda)
        if agenda == STALE:
            page = page.where(tasks.c.due_us <= sa.bindparam("now_us"))
        counted = page.order_by(tasks.c.due_us).limit(sa.bindparam("page")).subquery("counted")
        counts: sa.Select[Any] = sa.select(counted.c.status, sa.func.count())
        return counts.group_by(counted.c.status)


class ApproximateCounts(Waiting):
    """Counts tasks at a bounded cost."""

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        super().__init__(database, schema, queue)
        self.count_sql = CountStatements.shared(schema, database.engine.dialect)

    @override
    def approximate_stats(self, queue: str, now: float, created_after: float) -> Stats:
        def look(connection: sa.Connection) -> Stats:
            page = on_agenda(queue, now, created_after, COUNTED_ROWS)
            counted, pending, *ends = connection.execute(self.waiting_sql.sum_up, page).one()
            bounded = {"shed_by_reason": "not counted"}
            if counted == COUNTED_ROWS:
                bounded["pending"] = "at least"
                ends += self._ends(connection, queue, now, created_after, bounded)
            page = {"of_queue": queue, "now_us": microseconds(now), "page": COUNTED_ROWS}
            statuses = {
                agenda: {row[0]: row[1] for row in connection.execute(statement, page)}
                for agenda, statement in self.count_sql.statuses.items()
            }
            return _stats(now, pending, statuses, ends, bounded)

        return self.database.read(look)

    def _ends(
        self,
        connection: sa.Connection,
        queue: str,
        now: float,
        created_after: float,
        bounded: dict[str, str],
    ) -> list[int | None]:
        """Return when the oldest and newest tasks were created, if there are more than are counted."""
        lines = self.waiting_lines(connection, queue)
        if lines is not None and len(lines) <= FEW_LINES:
            return [
                connection.execute(statement, end_of_line(queue, line, now, created_after)).scalar()
                for line in lines
                for statement in (self.waiting_sql.oldest_of_line, self.waiting_sql.newest_of_line)
            ]
        bounded |= {"oldest_pending_seconds": "at least", "newest_pending_seconds": "at most"}
        page = on_agenda(queue, now, created_after, LOOKED_ROWS)
        return [connection.execute(self.waiting_sql.newest_waiting, page).scalar()]


def _stats(
    now: float,
    pending: int,
    statuses: dict[str, dict[str, int]],
    ends: list[int | None],
    bounded: dict[str, str],
) -> Stats:
    """Return stats from the counts of tasks by status, and when the oldest and newest were created."""
    due, over, stale = (statuses[agenda] for agenda in (DUE, OVER, STALE))
    if sum(due.values()) == COUNTED_ROWS:
        bounded |= {"taken": "at least", "delayed": "at least"}
    if COUNTED_ROWS in (sum(stale.values()), sum(over.values())):
        bounded["shed"] = "at least"
    if sum(over.values()) == COUNTED_ROWS:
        bounded |= dict.fromkeys(("success", "failure", "cancelled"), "at least")
    ages = [max(0.0, now - created_us / 1e6) for created_us in ends if created_us is not None]
    return Stats(
        pending=pending,
        delayed=due.get(TaskStatus.PENDING, 0),
        taken=due.get(TaskStatus.TAKEN, 0),
        success=over.get(TaskStatus.SUCCESS, 0),
        failure=over.get(TaskStatus.FAILURE, 0),
        cancelled=over.get(TaskStatus.CANCELLED, 0),
        shed=sum(stale.values()) + over.get(TaskStatus.PENDING, 0) + over.get(TaskStatus.SHED, 0),
        oldest_pending_seconds=max(ages, default=None),
        newest_pending_seconds=min(ages, default=None),
        bounded=bounded,
    )
