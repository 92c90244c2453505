"""What the sweep looks at: one agenda of when each task needs attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from freshq.model.task import TaskStatus
from freshq.stores.sql.rows import microseconds, task_of

if TYPE_CHECKING:
    import sqlalchemy as sa

    from freshq.model.task import Task
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.statements import Statements

PAGE_ROWS: Final = 200


@dataclass
class Upkeep:
    """Finds what is due in a store, and forgets what is past its retention.

    Attributes:
        database: Where the tasks are.
        statements: The statements on them.
    """

    database: Database
    statements: Statements

    def due(self, queue: str, now: float) -> list[Task]:
        """Return some tasks whose lease ran out or whose delay is over; empty: none is left."""
        parameters = {"of_queue": queue, "now_us": microseconds(now), "page": PAGE_ROWS}
        while True:
            rows = self.database.single(
                lambda connection, _again: connection.execute(self.statements.due, parameters).all()
            )
            if not rows:
                return []
            tasks = [(task_of(row), row.line is not None) for row in rows]
            found = [task for task, _in_line in tasks if task.status is TaskStatus.TAKEN or task.delayed]
            stale = [task.task_id for task, in_line in tasks if in_line]
            old = [task.task_id for task, in_line in tasks if task not in found and not in_line]
            self._tidy(queue, now, stale, old)
            if found:
                return found

    def _tidy(self, queue: str, now: float, stale: list[str], old: list[str]) -> None:
        """Take stale tasks out of their lines, and delete those that are past their retention."""

        def work(connection: sa.Connection, _again: bool) -> None:  # noqa: FBT001 - as it is called
            parameters = {"of_queue": queue, "now_us": microseconds(now)}
            if stale:
                connection.execute(self.statements.leave_line, parameters | {"ids": sorted(stale)})
            if old:
                connection.execute(self.statements.forget, parameters | {"ids": sorted(old)})

        if stale or old:
            self.database.transaction(work)

    def purge(self, queue: str) -> int:
        """Delete every task of the queue; return how many."""
        purged = 0

        def work(connection: sa.Connection, _again: bool) -> int:  # noqa: FBT001 - as it is called
            rows = connection.execute(self.statements.purge_page, {"of_queue": queue, "page": PAGE_ROWS})
            ids = sorted(row.task_id for row in rows)
            if ids:
                connection.execute(self.statements.purge, {"of_queue": queue, "ids": ids})
            return len(ids)

        while batch := self.database.transaction(work):
            purged += batch
        return purged
