"""What is read of many tasks: listings, counts, the oldest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from freshq.model.task import TaskStatus
from freshq.stores.base import Stats
from freshq.stores.sql.claims import PAST_EVERY_TIME_US, start_of_line
from freshq.stores.sql.rows import line_key, microseconds, parse_line, task_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import sqlalchemy as sa

    from freshq.model.task import Task
    from freshq.stores.lines import Line
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.statements import Statements

SCAN_ROWS: Final = 500
# An approximate count stops here.
COUNTED_ROWS: Final = 10_000


@dataclass
class Readings:
    """Reads the tasks of a store.

    Attributes:
        database: Where the tasks are.
        statements: The statements on them.
    """

    database: Database
    statements: Statements

    def scan(self, queue: str, start_after: str | None) -> Iterator[Task]:
        """Yield the tasks of the queue by id, page by page."""
        after: Any = start_after or ""
        while True:
            parameters = {"of_queue": queue, "after": after, "page": SCAN_ROWS}
            rows = self.database.single(
                lambda connection, _again: connection.execute(self.statements.scan, parameters).all()  # noqa: B023 - called at once
            )
            yield from map(task_of, rows)
            if len(rows) < SCAN_ROWS:
                return
            after = rows[-1].task_id

    def _lines(self, connection: sa.Connection, queue: str) -> list[Line]:
        return [parse_line(row[0]) for row in connection.execute(self.statements.lines, {"of_queue": queue})]

    def count_waiting(self, queue: str, created_after: float, at_most: int) -> dict[str | None, int]:
        """Count the claimable tasks by group, each line up to `at_most`."""

        def work(connection: sa.Connection, _again: bool) -> dict[str | None, int]:  # noqa: FBT001 - as it is called
            counts: Counter[str | None] = Counter()
            for line in self._lines(connection, queue):
                counts[line[1]] += self._count(connection, queue, line, created_after, at_most)
            return dict(counts)

        return self.database.single(work)

    def _count(
        self, connection: sa.Connection, queue: str, line: Line, created_after: float, at_most: int
    ) -> int:
        parameters = _of_line(queue, line, created_after) | {"at_most": at_most}
        return int(connection.execute(self.statements.count_of_line, parameters).scalar_one())

    def oldest_created(self, queue: str, created_after: float) -> float | None:
        """Return when the oldest claimable task was created."""

        def work(connection: sa.Connection, _again: bool) -> list[int]:  # noqa: FBT001 - as it is called
            found = (
                connection.execute(
                    self.statements.oldest_of_line, _of_line(queue, line, created_after)
                ).scalar()
                for line in self._lines(connection, queue)
            )
            return [created_us for created_us in found if created_us is not None]

        return min((created_us / 1e6 for created_us in self.database.single(work)), default=None)

    def oldest_tasks(
        self, queue: str, created_after: float, count: int, groups: Collection[str | None] | None
    ) -> list[Task]:
        """Return the oldest claimable tasks, those of the lowest priority level first."""

        def work(connection: sa.Connection, _again: bool) -> list[Task]:  # noqa: FBT001 - as it is called
            found: list[Task] = []
            for line in self._lines(connection, queue):
                if groups is None or line[1] in groups:
                    parameters = _of_line(queue, line, created_after) | start_of_line(newest_first=False)
                    parameters |= {"deadline_after_us": -PAST_EVERY_TIME_US, "at_most": count}
                    found += map(task_of, connection.execute(self.statements.look[False], parameters))
            return found

        ranked = sorted(
            self.database.single(work), key=lambda task: (task.priority, task.created, task.task_id)
        )
        return ranked[:count]

    def approximate_stats(self, queue: str, now: float, created_after: float) -> Stats:
        """Return counts by at most a page per line, and a page of the agenda."""

        def work(connection: sa.Connection, _again: bool) -> Stats:  # noqa: FBT001 - as it is called
            lines = self._lines(connection, queue)
            pending = [self._count(connection, queue, line, created_after, COUNTED_ROWS) for line in lines]
            ends = [
                connection.execute(self.statements.ends_of_line, _of_line(queue, line, created_after)).one()
                for line in lines
            ]
            agenda = connection.execute(
                self.statements.page_of_agenda, {"of_queue": queue, "page": COUNTED_ROWS}
            ).all()
            bounded = dict.fromkeys(("success", "failure", "cancelled", "shed"), "not counted")
            if COUNTED_ROWS in pending:
                bounded["pending"] = "at least"
            if len(agenda) == COUNTED_ROWS:
                bounded |= {"taken": "at least", "delayed": "at least"}
            oldest = [end[0] / 1e6 for end in ends if end[0] is not None]
            newest = [end[1] / 1e6 for end in ends if end[1] is not None]
            return Stats(
                pending=sum(pending),
                delayed=sum(
                    row.status == TaskStatus.PENDING and row.not_before_us is not None for row in agenda
                ),
                taken=sum(row.status == TaskStatus.TAKEN for row in agenda),
                oldest_pending_seconds=max(0.0, now - min(oldest)) if oldest else None,
                newest_pending_seconds=max(0.0, now - max(newest)) if newest else None,
                bounded=bounded,
            )

        return self.database.single(work)


def _of_line(queue: str, line: Line, created_after: float) -> dict[str, Any]:
    return {
        "of_queue": queue,
        "of_line": line_key(*line),
        "created_after_us": microseconds(created_after),
    }
