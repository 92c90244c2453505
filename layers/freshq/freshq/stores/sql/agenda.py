"""Find due tasks: expired leases, delays that have passed, stale and expired tasks."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from typing_extensions import override

from freshq.errors import quoted
from freshq.model.task import TaskStatus
from freshq.stores.base import Due
from freshq.stores.sql.history import SqlHistory
from freshq.stores.sql.rows import DUE, OVER, STALE, microseconds, task_of
from freshq.stores.sql.statements import ONE, ClaimStatements, SqlPart, Statements

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from freshq.model.task import Task
    from freshq.stores.base import ExpiredTasks
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.horizon import Horizon
    from freshq.stores.sql.schema import Schema

PAGE_ROWS: Final = 200
# The kinds of attention that the tasks of a status need, in the order of its list.
LISTED: Final = {TaskStatus.PENDING: (STALE, DUE), TaskStatus.TAKEN: (DUE,)}
FOREVER_US: Final = 2**62
# Maximum number of held and delayed tasks that one search for a status reads.
COMING_ROWS: Final = 1_000


def page_of(rows: int) -> dict[str, int]:
    """Return the parameters of a page, which skips the locked tasks of up to nine other such pages."""
    return {"page": rows, "looked": 10 * rows}


class StaleTasks:
    """Removes tasks that are past their deadline from their lines."""

    def __init__(self, database: Database, schema: Schema, horizon: Horizon, expired: ExpiredTasks) -> None:
        self._database = database
        self._expired = expired
        self._horizon = horizon
        self._sql = ClaimStatements.shared(schema, database.engine.dialect)

    def leave_lines(self, queue: str, now: float, limit: int) -> int:
        """Remove up to `limit` stale tasks from their lines, and note their deadlines; return how many.

        Raises:
            StoreError: If the database failed.
        """
        where = self._horizon.past(queue, STALE, now)
        looks_first = self._database.dialect != "postgresql"
        if looks_first and not self._database.rows(self._sql.statement("any_stale"), where):
            return 0
        if self._sql.has_returning:
            rows = self._database.execute(self._sql.ready("leave_lines"), where | {"page": limit}).rows
            deadlines_us = [row[0] for row in rows]
            if len(deadlines_us) < limit:
                self._horizon.none_past(where, STALE)
        else:
            deadlines_us = self._database.transaction(partial(self._leave, where, limit))
        self._expired.note(queue, [deadline_us / 1e6 for deadline_us in deadlines_us])
        return len(deadlines_us)

    def _leave(self, where: Mapping[str, Any], limit: int, connection: sa.Connection) -> list[int]:
        """Remove the first stale tasks from their lines, on MariaDB and MySQL; return their deadlines."""
        found = connection.execute(self._sql.statement("stale"), {**where, **page_of(limit)}).all()
        if found:
            ids = sorted(row.task_id for row in found)
            connection.execute(self._sql.statement("leave_lines"), {**where, "of_ids": ids})
        return [row.deadline_us for row in found]


class UpkeepStatements(Statements):
    """Statements of upkeep: they find tasks which need attention, earliest first."""

    def _past(self, agenda: str, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
        """Columns of the tasks that need one kind of attention by now."""
        due_us = self.tasks.c.due_us
        until_now = (due_us > sa.bindparam("from_us"), due_us <= sa.bindparam("now_us"))
        past = sa.select(*columns).where(self.in_queue, self.tasks.c.agenda == agenda, *until_now)
        return past.order_by(due_us)

    def any_past(self, agenda: str) -> sa.Select[Any]:
        """The id of a task that needs attention by now, without a lock."""
        return self._past(agenda, self.tasks.c.task_id).limit(ONE)

    def first_past(self, agenda: str, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
        """The first `page` tasks that need attention by now, locked until the transaction ends.

        They do not include tasks that another transaction has locked. MariaDB and MySQL find them among the
        first `looked`.
        """
        page = self._past_by_key(agenda, *columns) if self.is_mysql else self._past(agenda, *columns)
        return page.limit(sa.bindparam("page")).with_for_update(of=self.tasks, skip_locked=True)

    def _past_by_key(self, agenda: str, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
        """The first `looked` tasks that need attention, found without locks and then read by their keys.

        If MariaDB or MySQL locked during the search, it would also lock the first entry after the range: a
        waiting task, which claims would then skip.
        """
        tasks = self.tasks
        keys = self._past(agenda, tasks.c.task_id, tasks.c.queue, tasks.c.due_us)
        found = keys.limit(sa.bindparam("looked")).subquery("found")
        same = sa.and_(tasks.c.task_id == found.c.task_id, tasks.c.queue == found.c.queue)
        still = (tasks.c.agenda == agenda, tasks.c.due_us == found.c.due_us)
        page = sa.select(*columns).select_from(found.join(tasks, same)).where(*still)
        return self.in_order(page)

    @cached_property
    def due(self) -> sa.Select[Any]:
        """Held and delayed tasks that are due, earliest first."""
        return self.first_past(DUE, *self.columns)

    @cached_property
    def next_due(self) -> sa.Select[Any]:
        """Time at which the next delay or lease ends."""
        due_us = self.tasks.c.due_us
        later = (self.tasks.c.agenda == DUE, due_us > sa.bindparam("now_us"))
        return sa.select(due_us).where(self.in_queue, *later).order_by(due_us).limit(1)

    @cached_property
    def coming(self) -> sa.Select[Any]:
        """Tasks of a status among the first `looked` held and delayed tasks, next due first."""
        tasks = self.tasks
        looked = sa.select(tasks.c.task_id, tasks.c.due_us).where(self.in_queue, tasks.c.agenda == DUE)
        coming = looked.order_by(tasks.c.due_us).limit(sa.bindparam("looked")).subquery("coming")
        return (
            sa.select(*self.columns)
            .select_from(coming.join(tasks, tasks.c.task_id == coming.c.task_id))
            .where(self.in_queue, tasks.c.agenda == DUE, tasks.c.status == sa.bindparam("of_status"))
            .order_by(coming.c.due_us)
            .limit(sa.bindparam("page"))
        )

    @cached_property
    def listed_by_status(self) -> sa.Select[Any]:
        """A page of the tasks of a status that need one kind of attention, next due first."""
        due_us, task_id = self.tasks.c.due_us, self.tasks.c.task_id
        place_us = sa.bindparam("from_us", type_=sa.BigInteger)
        follows = sa.or_(due_us > place_us, task_id > sa.bindparam("after_id", type_=task_id.type))
        of_status = (
            self.tasks.c.agenda == sa.bindparam("of_agenda"),
            self.tasks.c.status == sa.bindparam("of_status"),
            self.tasks.c.created_us > sa.bindparam("created_after_us"),
        )
        page = sa.select(*self.columns, due_us).where(self.in_queue, *of_status, due_us >= place_us, follows)
        return page.order_by(due_us, task_id).limit(sa.bindparam("page"))

    @cached_property
    def any_over(self) -> sa.Select[Any]:
        """The id of a task past its retention."""
        return self.any_past(OVER)

    @cached_property
    def over_ids(self) -> sa.Select[Any]:
        """Ids of tasks past their retention, earliest first, locked until the transaction ends."""
        return self.first_past(OVER, self.tasks.c.task_id)

    @cached_property
    def page_of_ids(self) -> sa.Select[Any]:
        """A page of ids of a queue."""
        return sa.select(self.tasks.c.task_id).where(self.in_queue).limit(sa.bindparam("page"))

    @cached_property
    def purge(self) -> sa.Executable:
        """Delete tasks, whatever their status.

        Ids are the only condition, because the transaction has locked the tasks: with the retention as a
        condition, databases would read the index of all tasks past it.
        """
        if not self.is_mysql:
            return sa.delete(self.tasks).where(self.in_queue_by_id, self.listed)
        return self.deleted_by_key(self.tasks.c.task_id, "ids", "queue")


class SqlAgenda(SqlPart):
    """Finds due tasks, and deletes."""

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        super().__init__(database, schema, queue)
        self.upkeep_sql = UpkeepStatements.shared(schema, database.engine.dialect)
        self._stale = StaleTasks(database, schema, self.horizon, self.expired)
        self.history: SqlHistory = SqlHistory(database, schema)

    @override
    def due(self, queue: str, now: float, limit: int) -> Due:
        where = self.horizon.past(queue, DUE, now)
        rows = self.database.rows(self.upkeep_sql.due, where | page_of(limit + 1))
        if not rows:
            self.horizon.none_past(where, DUE)
        tasks = [task_of(row) for row in rows]
        return Due(tasks[:limit], more=len(tasks) > limit)

    @override
    def delayed(self, queue: str, limit: int) -> list[Task]:
        return self._coming(queue, TaskStatus.PENDING, limit)

    @override
    def leased(self, queue: str, limit: int) -> list[Task]:
        return self._coming(queue, TaskStatus.TAKEN, limit)

    def _coming(self, queue: str, status: TaskStatus, limit: int) -> list[Task]:
        parameters = {"of_queue": queue, "of_status": status, "looked": COMING_ROWS, "page": limit}
        return [task_of(row) for row in self.database.rows(self.upkeep_sql.coming, parameters)]

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
        where = {"of_queue": queue, "of_status": status, "page": PAGE_ROWS}
        # A held task is listed whatever its age.
        where["created_after_us"] = (
            microseconds(created_after) if status is TaskStatus.PENDING else -FOREVER_US
        )
        for agenda, due_us, task_id in places:
            place = {"of_agenda": agenda, "from_us": due_us, "after_id": task_id}
            while True:
                rows = self.database.rows(self.upkeep_sql.listed_by_status, where | place)
                for row in rows:
                    task, place_us = task_of(row[:-1]), row[-1]
                    place |= {"from_us": place_us, "after_id": task.task_id}
                    yield task, f"{agenda}/{place_us}/{task.task_id}"
                if len(rows) < PAGE_ROWS:
                    break

    @override
    def tidy(self, queue: str, now: float, limit: int) -> int:
        tidied = self._stale.leave_lines(queue, now, limit)
        if tidied < limit:
            tidied += self._forget(queue, now, limit - tidied)
        # Also prune here: each deleted task leaves events.
        return max(tidied, self.history.prune(queue, now, limit))

    def _forget(self, queue: str, now: float, limit: int) -> int:
        parameters = self.horizon.past(queue, OVER, now)
        # Begin a transaction only if there is work: on SQLite it blocks other writers.
        if not self.database.rows(self.upkeep_sql.any_over, parameters):
            self.horizon.none_past(parameters, OVER)
            return 0

        def forget(connection: sa.Connection) -> int:
            page = parameters | page_of(limit)
            ids = sorted(connection.execute(self.upkeep_sql.over_ids, page).scalars())
            if ids:
                connection.execute(self.upkeep_sql.purge, {"of_queue": queue, "ids": ids})
            return len(ids)

        return self.database.transaction(forget)

    @override
    def next_due(self, queue: str, now: float) -> float | None:
        where = {"of_queue": queue, "now_us": microseconds(now)}

        def read() -> float | None:
            row = self.database.row(self.upkeep_sql.next_due, where)
            return None if row is None else row.due_us / 1e6

        parts = self.horizon.recent(queue)
        return read() if parts is None else parts.next_due(read, self.horizon.monotonic(), now)

    @override
    def purge(self, queue: str) -> int:
        self.database.refuse_held(queue)

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
