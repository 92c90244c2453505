"""Takes tasks that are past their deadline out of their lines."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from freshq.stores.sql.rows import OVER, STALE, microseconds
from freshq.stores.sql.statements import Conditions, Statements

if TYPE_CHECKING:
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.prepared import PreparedStatement
    from freshq.stores.sql.schema import Schema


class StaleStatements(Statements):
    """The statements that change stale tasks. None waits for a row that a transaction holds."""

    @cached_property
    def _is_stale(self) -> Conditions:
        return (self.tasks.c.agenda == STALE, self.tasks.c.due_us <= sa.bindparam("now_us"))

    @cached_property
    def _out_of_line(self) -> dict[str, Any]:
        """A stale task stays in the table until its retention is over."""
        return {"line": sa.null(), "agenda": OVER, "due_us": self.tasks.c.expires * 1_000_000}

    @cached_property
    def stale_ids(self) -> sa.Select[Any]:
        """The ids of stale tasks, the earliest first; locked until the transaction ends."""
        page = sa.select(self.tasks.c.task_id).where(self.in_queue, *self._is_stale)
        page = page.order_by(self.tasks.c.due_us).limit(sa.bindparam("page"))
        return page.with_for_update(skip_locked=True)

    @cached_property
    def leave_line(self) -> sa.Update:
        """Take tasks that the transaction has locked out of their lines."""
        return (
            sa.update(self.tasks).where(self.in_queue, self.listed, *self._is_stale).values(self._out_of_line)
        )

    @cached_property
    def leave_line_first(self) -> PreparedStatement:
        """Take the first stale tasks out of their lines, on PostgreSQL and SQLite."""
        update = sa.update(self.tasks).where(self.among(self.stale_ids)).values(self._out_of_line)
        return self.prepared(update)


class StaleTasks:
    """Takes tasks that are past their deadline out of their lines."""

    def __init__(self, database: Database, schema: Schema) -> None:
        self._database = database
        self._sql = StaleStatements.shared(schema, database.engine.dialect)

    def leave_lines(self, queue: str, now: float, limit: int) -> int:
        """Take up to `limit` stale tasks out of their lines; return how many.

        Raises:
            StoreError: If the database did not carry it out.
        """
        where = {"of_queue": queue, "now_us": microseconds(now)}
        # On SQLite, an UPDATE keeps other writers out also if it changes nothing.
        if self._database.dialect != "postgresql" and not self._database.rows(
            self._sql.stale_ids, where | {"page": 1}
        ):
            return 0
        if self._sql.has_returning:
            return self._database.execute(self._sql.leave_line_first, where | {"page": limit}).changed

        def leave(connection: sa.Connection) -> int:
            ids = sorted(connection.execute(self._sql.stale_ids, where | {"page": limit}).scalars())
            if ids:
                connection.execute(self._sql.leave_line, where | {"ids": ids})
            return len(ids)

        return self._database.transaction(leave)
