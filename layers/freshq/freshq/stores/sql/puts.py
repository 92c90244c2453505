"""How tasks are put: new ones, in a transaction of the caller's, and over one of the same id."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import SQLAlchemyError

from freshq.stores.conflicts import CREATED, DUPLICATE, UPDATED, put_over
from freshq.stores.sql.rows import row_of, task_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sqlalchemy as sa

    from freshq.errors import FreshqError
    from freshq.model.task import Task
    from freshq.stores.conflicts import OnConflict
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.statements import Statements

# Rows in one transaction: enough to pay for its commit, few enough to lock nobody out.
BATCH_ROWS: Final = 500


class Arrivals:
    """Wakes those who wait in this process when something was put."""

    def __init__(self) -> None:
        """Start at nothing."""
        self.number = 0
        self._condition = threading.Condition()

    def note(self) -> None:
        """Say that something was put, and committed."""
        with self._condition:
            self.number += 1
            self._condition.notify_all()

    def wait(self, seen: int, seconds: float) -> None:
        """Wait until the number is no longer what was seen, or so many seconds."""
        with self._condition:
            self._condition.wait_for(lambda: self.number != seen, seconds)


@dataclass
class Puts:
    """Puts tasks into a store.

    Attributes:
        database: Where the tasks are.
        statements: The statements on them.
        arrivals: Is told of what was put.
    """

    database: Database
    statements: Statements
    arrivals: Arrivals = field(default_factory=Arrivals)

    def insert(self, tasks: Sequence[Task]) -> list[bool | FreshqError]:
        """Add tasks whose ids are free, in batches."""
        rows = [row_of(task) for task in tasks]
        added: list[bool | FreshqError] = []
        if len(rows) == 1 and self.statements.quick_put is not None:
            if self.database.quick(self.statements.quick_put, rows[0])[1] == 1:
                self.arrivals.note()
                return [True]
            return list(self.database.single(lambda connection, _again: self._added(connection, rows)))
        for start in range(0, len(rows), BATCH_ROWS):
            batch = rows[start : start + BATCH_ROWS]
            run = self.database.single if len(batch) == 1 else self.database.transaction
            added += run(lambda connection, again: self._insert(connection, batch, again))  # noqa: B023 - called at once
        self.arrivals.note()
        return added

    def put(
        self, tasks: Sequence[Task], on_conflict: OnConflict | None, connection: sa.Connection | None
    ) -> list[str]:
        """Put tasks, each over what it meets; return the value of the PutOutcome of each.

        Args:
            tasks: The tasks.
            on_conflict: What becomes of a task that lives and has the same id.
            connection: The caller's transaction; None for one of its own.
        """
        rows = [row_of(task) for task in tasks]
        if connection is None:
            outcomes = self.database.transaction(
                lambda mine, again: self._put(mine, tasks, rows, on_conflict, again)
            )
            self.arrivals.note()
            return outcomes
        try:
            return self._put(connection, tasks, rows, on_conflict, again=False)
        except SQLAlchemyError as error:
            raise self.database.translated(error) from error

    def _put(
        self,
        connection: sa.Connection,
        tasks: Sequence[Task],
        rows: list[dict[str, Any]],
        on_conflict: OnConflict | None,
        again: bool,  # noqa: FBT001 - as it is called
    ) -> list[str]:
        added = self._insert(connection, rows, again)
        return [
            CREATED
            if is_new
            else DUPLICATE
            if on_conflict is None
            else self._put_over(connection, task, row, on_conflict)
            for task, row, is_new in zip(tasks, rows, added, strict=True)
        ]

    def _insert(self, connection: sa.Connection, rows: list[dict[str, Any]], again: bool) -> list[bool]:  # noqa: FBT001 - as it is called
        """Insert rows; one whose key is taken is left out, and keeps no other one out.

        Which are in is told from the token of the put: so an insert that is repeated, since its answer
        was lost, finds its own rows.
        """
        result = connection.execute(self.statements.put, rows if len(rows) > 1 else rows[0])
        # With MariaDB, a row that was there counts too.
        trusted = self.database.dialect in ("sqlite", "postgresql") and not again
        if trusted and result.rowcount == len(rows):
            return [True] * len(rows)
        return self._added(connection, rows)

    def _added(self, connection: sa.Connection, rows: list[dict[str, Any]]) -> list[bool]:
        tokens = self._tokens(connection, rows)
        return [tokens.get(row["task_id"]) == row["put_token"] for row in rows]

    def _tokens(self, connection: sa.Connection, rows: list[dict[str, Any]]) -> dict[str, str]:
        tokens: dict[str, str] = {}
        ids = [row["task_id"] for row in rows]
        for start in range(0, len(ids), BATCH_ROWS):
            found = connection.execute(
                self.statements.put_tokens,
                {"of_queue": rows[0]["queue"], "ids": ids[start : start + BATCH_ROWS]},
            )
            tokens |= {row.task_id: row.put_token for row in found}
        return tokens

    def _put_over(
        self, connection: sa.Connection, task: Task, row: dict[str, Any], on_conflict: OnConflict
    ) -> str:
        """Put a task whose id was taken: over what is over, and over what lives if it is to be updated."""
        found = connection.execute(
            self.statements.row, {"of_queue": task.queue, "of_task_id": task.task_id}
        ).one_or_none()
        if found is None:  # deleted a moment ago
            return CREATED if self._insert(connection, [row], again=True)[0] else DUPLICATE
        current = task_of(found)
        if current.request_token == task.request_token:  # by an earlier try, whose answer was lost
            return CREATED if found.put_token == row["put_token"] else UPDATED
        outcome = put_over(current, task, on_conflict)
        if outcome == DUPLICATE:
            return DUPLICATE
        # An update keeps the token of the put that made the task, and so is told apart from it.
        new = row | ({"put_token": found.put_token} if outcome == UPDATED else {})
        where = {"of_task_id": task.task_id, "of_queue": task.queue}
        connection.execute(
            self.statements.replace_row, new | where | {"of_request_token": current.request_token}
        )
        return outcome
