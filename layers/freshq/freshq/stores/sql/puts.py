"""How tasks are put: new ones, in a transaction of the caller's, and over one of the same id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from freshq.stores.sql.rows import row_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sqlalchemy as sa

    from freshq.errors import FreshqError
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.statements import Statements
    from freshq.task import Task

# Rows in one transaction: enough to pay for its commit, few enough to lock nobody out.
BATCH_ROWS: Final = 500


@dataclass
class Puts:
    """Puts tasks into a store.

    Attributes:
        database: Where the tasks are.
        statements: The statements on them.
    """

    database: Database
    statements: Statements

    def insert(self, tasks: Sequence[Task]) -> list[bool | FreshqError]:
        """Add tasks whose ids are free, in batches; what follows a batch that fails fails with it."""
        rows = [row_of(task) for task in tasks]
        added: list[bool | FreshqError] = []
        for start in range(0, len(rows), BATCH_ROWS):
            batch = rows[start : start + BATCH_ROWS]
            run = self.database.single if len(batch) == 1 else self.database.transaction
            added += run(lambda connection, again: self._insert(connection, batch, again))  # noqa: B023 - called at once
        return added

    def insert_in(self, connection: sa.Connection, tasks: Sequence[Task]) -> list[bool]:
        """Add tasks whose ids are free, in the caller's transaction."""
        rows = [row_of(task) for task in tasks]
        return self._insert(connection, rows, again=True)

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
