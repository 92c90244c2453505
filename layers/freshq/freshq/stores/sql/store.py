"""Open and assemble the store of tasks in a SQL database."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from freshq.stores.sql.agenda import SqlAgenda
from freshq.stores.sql.database import Database
from freshq.stores.sql.history import history_seconds_for
from freshq.stores.sql.lines import SqlLines
from freshq.stores.sql.migrations import migrate
from freshq.stores.sql.records import SqlRecords
from freshq.stores.sql.schema import checked_table, schema
from freshq.stores.sql.tasks import SqlTasks
from freshq.stores.sql.transactions import SqlTransactions
from freshq.stores.sql.url import DEFAULT, ConnectionLimits, connection_limits_for, place_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import sqlalchemy as sa


class SqlStore(SqlTasks, SqlLines, SqlAgenda, SqlRecords):
    """Tasks in a table of a relational database. Thread-safe; each process makes its own."""

    def __init__(
        self,
        url: str | sa.URL | sa.Engine,
        table: str = "tasks",
        *,
        queue: str | None = None,
        limits: ConnectionLimits = DEFAULT,
        history_seconds: float | None = None,
    ) -> None:
        """Use a database; nothing is sent before the first call.

        Args:
            url: Address of the database, or an engine made by `freshq.stores.sql.database.open_engine`.
            table: Name of the table of tasks; the names of the others begin with it.
            queue: Whose tasks `get` returns: ids are unique within a queue. None: of any queue of the
                table.
            limits: The limits of its connections; an engine has its own.
            history_seconds: How long `create_table` makes the database keep the history of `queue`; 0: it
                keeps none any more. None: as it is.

        Raises:
            ValueError: If an argument is wrong.
        """
        checked_table(table)
        if history_seconds is not None and queue is None:
            raise ValueError("queue: must be given with history_seconds")
        database = Database(url, table, limits)
        super().__init__(database, schema(table, database.dialect), queue)
        self.clock = database.clock
        self._history_seconds = history_seconds
        if queue is not None:  # ids are unique within a queue
            self.place = (place_of(database.engine.url), table, queue)
        if queue is not None and history_seconds:
            database.requirement = partial(self.history.check, queue)
        self.transactions = SqlTransactions(tasks=self, lines=self)

    @override
    def create_table(self) -> None:
        self.database.requirement = None
        self.migrate()
        if self.queue is None or self._history_seconds is None:
            return
        if self._history_seconds > 0:
            self.history.begin(self.queue, self._history_seconds)
        else:
            self.history.end(self.queue)

    def migrate(self) -> list[str]:
        """Bring the tables to the newest version; return the names of the migrations that were applied."""
        self.database.allow_new_file()
        return migrate(self.database, self.schema)

    @override
    def close(self) -> None:
        """Close the connections if the store opened the engine; the store can be used again."""
        self.database.close()


def open_store(
    url: str,
    table: str,
    options: Mapping[str, Any],
    history: object = None,
    history_seconds: float | None = None,
) -> tuple[SqlStore, dict[str, Any]]:
    """Return the store of a queue, and the options that are the queue's own.

    Args:
        url: Address of the database.
        table: Name of the table of tasks.
        options: Options of the queue and of `ConnectionLimits`, not checked yet.
        history: Whether to keep a history; None to leave it as it is.
        history_seconds: For how long; None for a week.

    Raises:
        ValueError: If an argument is wrong.
    """
    given = {field.name: options[field.name] for field in fields(ConnectionLimits) if field.name in options}
    others = {name: value for name, value in options.items() if name not in given}
    store = SqlStore(
        url,
        table,
        queue=others.get("name", "default"),
        limits=connection_limits_for(others.get("lease_seconds"), **given),
        history_seconds=history_seconds_for(history, history_seconds),
    )
    return store, others
