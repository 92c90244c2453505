"""Find due tasks: expired leases, delays that have passed, stale and expired tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from freshq.errors import quoted
from freshq.model.task import TaskStatus
from freshq.stores.base import Due
from freshq.stores.sql.history import SqlHistory
from freshq.stores.sql.horizon import EVER_US
from freshq.stores.sql.rows import DUE, OVER, STALE, microseconds, task_of
from freshq.stores.sql.statements import SqlPart, page_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import sqlalchemy as sa

    from freshq.model.task import Task
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.schema import Schema

PAGE_ROWS: Final = 200
# The kinds of attention that the tasks of a status need, in the order of its list.
LISTED: Final = {TaskStatus.PENDING: (STALE, DUE), TaskStatus.TAKEN: (DUE,)}
# Maximum number of held and delayed tasks that one search for a status reads.
COMING_ROWS: Final = 1_000


class SqlAgenda(SqlPart):
    """Finds due tasks, and deletes."""

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        super().__init__(database, schema, queue)
        self.history: SqlHistory = SqlHistory(database, schema)

    @override
    def due(self, queue: str, now: float, limit: int) -> Due:
        where = self.horizon.past(queue, DUE, now)
        rows = self.rows("due", where | page_of(limit + 1))
        if not rows:
            self.horizon.none_past(where)
        tasks = [task_of(row) for row in rows]
        return Due(tasks[:limit], more=len(tasks) > limit)

    @override
    def delayed(self, queue: str, limit: int) -> list[Task]:
        return self._coming(queue, TaskStatus.PENDING, limit)

    @override
    def leased(self, queue: str, limit: int) -> list[Task]:
        return self._coming(queue, TaskStatus.TAKEN, limit)

    def _coming(self, queue: str, status: TaskStatus, limit: int) -> list[Task]:
        parameters = {"of_queue": queue, "status": status.value, "looked": COMING_ROWS, "page": limit}
        return [task_of(row) for row in self.rows("coming", parameters)]

    @override
    def listed(
        self, queue: str, status: TaskStatus, now: float, created_after: float, start_after: str | None
    ) -> Iterator[tuple[Task, str]]:
        """Yield from the index of the agenda; the cursor is the place there."""
        agendas = LISTED[status]
        if start_after is None:
            # Passed deadlines come first.
            starts = [(each, microseconds(now) if each == STALE else 0, "") for each in agendas]
            return self._listed(queue, status, created_after, starts)
        agenda, _, place = start_after.partition("/")
        due_us, _, task_id = place.partition("/")
        if agenda not in agendas or not (due_us.isdecimal() and due_us.isascii() and task_id):
            msg = f"cursor: must be that of a page of {status} tasks, got {quoted(start_after)}"
            raise ValueError(msg)
        later = agendas[agendas.index(agenda) + 1 :]
        places = [(agenda, int(due_us), task_id), *((each, 0, "") for each in later)]
        return self._listed(queue, status, created_after, places)

    def _listed(
        self, queue: str, status: TaskStatus, created_after: float, places: Iterable[tuple[str, int, str]]
    ) -> Iterator[tuple[Task, str]]:
        where = {"of_queue": queue, "status": status.value, "page": PAGE_ROWS}
        # A held task is listed whatever its age.
        where["created_after_us"] = microseconds(created_after) if status is TaskStatus.PENDING else -EVER_US
        for agenda, due_us, task_id in places:
            place = {"agenda": agenda, "from_us": due_us, "of_after_id": task_id}
            while True:
                rows = self.rows("listed_by_status", where | place)
                for row in rows:
                    task, place_us = task_of(row[:-1]), row[-1]
                    place |= {"from_us": place_us, "of_after_id": task.task_id}
                    yield task, f"{agenda}/{place_us}/{task.task_id}"
                if len(rows) < PAGE_ROWS:
                    break

    @override
    def tidy(self, queue: str, now: float, limit: int) -> int:
        tidied = self.leave_lines(queue, now, limit)
        if tidied < limit:
            tidied += self._forget(queue, now, limit - tidied)
        # Also prune here: each deleted task leaves events.
        return max(tidied, self.history.prune(queue, now, limit))

    def _forget(self, queue: str, now: float, limit: int) -> int:
        parameters = self.horizon.past(queue, OVER, now)
        # Begin a transaction only if there is work: on SQLite it blocks other writers.
        if not self.rows("any_past", parameters):
            self.horizon.none_past(parameters)
            return 0

        def forget(connection: sa.Connection) -> int:
            page = parameters | page_of(limit)
            return self._purge(connection, queue, "over_ids", page)

        return self.database.transaction(forget)

    @override
    def next_due(self, queue: str, now: float) -> float | None:
        where = {"of_queue": queue, "now_us": microseconds(now)}

        def read() -> float | None:
            row = self.row("next_due", where)
            return None if row is None else row.due_us / 1e6

        parts = self.horizon.recent(queue)
        return read() if parts is None else parts.next_due(read, self.horizon.monotonic(), now)

    @override
    def purge(self, queue: str) -> int:
        self.database.refuse_held(queue)

        def purge_page(connection: sa.Connection) -> int:
            return self._purge(connection, queue, "ids_of_queue", {"of_queue": queue, "page": PAGE_ROWS})

        purged = 0
        while page := self.database.transaction(purge_page):
            purged += page
        return purged

    def _purge(self, connection: sa.Connection, queue: str, found: str, page: Mapping[str, Any]) -> int:
        """Delete the tasks whose ids the statement `found` selects; return how many."""
        ids = sorted(connection.execute(self.sql.statement(found), page).scalars())
        if ids:
            connection.execute(self.sql.statement("purge"), {"of_queue": queue, "of_ids": ids})
        return len(ids)
