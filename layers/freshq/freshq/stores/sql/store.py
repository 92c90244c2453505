"""Open and assemble the store of tasks in a SQL database."""

from __future__ import annotations

import logging
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
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


logger = logging.getLogger(__name__)
# Whether the server waits for the disk at each commit: 1.
FLUSH: Final = sa.text("SELECT @@innodb_flush_log_at_trx_commit")


class SqlStore(SqlTasks, SqlLines, SqlAgenda, SqlRecords):
    """Tasks in a table of a relational database. Thread-safe; each process opens its own store."""

    def __init__(
        self,
        url: str | sa.URL | sa.Engine,
        table: str = "tasks",
        *,
        queue: str | None = None,
        limits: ConnectionLimits = DEFAULT,
        history_seconds: float | None = None,
    ) -> None:
        """Name the database; the first call connects.

        Args:
            url: Address of the database, or an engine made by `freshq.stores.sql.database.open_engine`.
            table: Name of the table of tasks; the names of the other tables begin with it.
            queue: The queue whose tasks `get` returns, because ids are unique only within a queue; None for
                any queue of the table.
            limits: Limits of the connections; ignored for an engine, which has its own.
            history_seconds: Retention that `create_table` sets for the history of `queue`; 0 to stop keeping
                one, None to leave the setting unchanged.

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
        """Migrate the tables to the newest version; return the names of the applied migrations."""
        self.database.allow_new_file()
        applied = migrate(self.database, self.schema)
        if self.database.dialect in ("mysql", "mariadb") and self.database.rows(FLUSH, {})[0][0] != 1:
            logger.warning(
                "table %r: the server may lose acknowledged puts when it crashes; set "
                "innodb_flush_log_at_trx_commit=1",
                self.schema.tasks.name,
            )
        return applied

    @override
    def close(self) -> None:
        """Close the connections if the store opened the engine; later calls reconnect."""
        self.wakes.close()
        self.database.close()


def open_store(
    url: str,
    table: str,
    options: Mapping[str, Any],
    history: object = None,
    history_seconds: float | None = None,
) -> tuple[SqlStore, dict[str, Any]]:
    """Return the store of a queue, and the remaining options, which belong to the queue.

    Args:
        url: Address of the database.
        table: Name of the table of tasks.
        options: Unchecked options of the queue and of `ConnectionLimits`.
        history: Whether to keep a history; None to leave the setting unchanged.
        history_seconds: Retention of the history; None for a week.

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
