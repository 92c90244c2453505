"""Open and assemble the store of tasks in a SQL database."""

from __future__ import annotations

import logging
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from typing_extensions import override

from freshq.model.checks import queue_name
from freshq.stores.base import Finding, Health
from freshq.stores.sql.agenda import SqlAgenda
from freshq.stores.sql.database import Database
from freshq.stores.sql.examining import DURABLE, durability, rights, structure
from freshq.stores.sql.history import history_seconds_for
from freshq.stores.sql.lines import SqlLines
from freshq.stores.sql.migrations import MIGRATIONS, check_owned, migrate, reached_version
from freshq.stores.sql.records import SqlRecords
from freshq.stores.sql.schema import checked_table, schema
from freshq.stores.sql.tasks import SqlTasks
from freshq.stores.sql.transactions import SqlTransactions
from freshq.stores.sql.url import DEFAULT, ConnectionLimits, connection_limits_for, place_of, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from contextlib import AbstractContextManager

    from freshq.stores.base import Stats


logger = logging.getLogger(__name__)
_CIPHER: Final = sa.text(
    "SELECT VARIABLE_VALUE <> '' FROM information_schema.SESSION_STATUS WHERE VARIABLE_NAME = 'Ssl_cipher'"
)
# By dialect: whether the connection is encrypted.
ENCRYPTED: Final[Mapping[str, sa.TextClause]] = {
    "postgresql": sa.text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"),
    "mariadb": _CIPHER,
}
# By dialect: who is connected. SQLite has no users.
USERS: Final[Mapping[str, sa.TextClause]] = {
    "postgresql": sa.text("SELECT session_user"),
    "mysql": sa.text("SELECT USER()"),
    "mariadb": sa.text("SELECT USER()"),
}
LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


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
        self._limits = limits
        self._history_seconds = history_seconds
        if queue is not None:  # ids are unique within a queue
            self.place = (place_of(database.engine.url), table, queue)
        if queue is not None and history_seconds:
            database.requirement = partial(self.history.check, queue)
        self.transactions = SqlTransactions(tasks=self, lines=self)

    def __repr__(self) -> str:
        return shown(self.database.engine.url, self.schema.tasks.name)

    @override
    def of_queue(self, queue: str) -> SqlStore:
        return SqlStore(self.database.engine, self.schema.tasks.name, queue=queue, limits=self._limits)

    @override
    def aside(self) -> AbstractContextManager[None]:
        return self.database.aside()

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
        for finding in self._durability():
            if finding.action:
                logger.warning("table %r: %s; %s", self.schema.tasks.name, finding.text, finding.action)
        return applied

    @override
    def examine(self) -> Iterator[Finding]:
        """Look at the tables, the rights, the durability of commits, and the encryption."""
        table = self.schema.tasks.name
        reached = self.database.read(lambda connection: reached_version(connection, self.schema))
        newest = MIGRATIONS[-1].version
        create = "freshq table create with the address of the queue"
        if reached is None:
            self.database.read(lambda connection: check_owned(connection, [self.schema.tasks]))
            yield Finding(Health.WRONG, "table", f"{table} does not exist", create)
            return
        if reached == newest:
            yield Finding(Health.OK, "table", f"{table}, version {reached}")
        elif reached < newest:
            yield Finding(Health.WARNING, "table", f"{table} has version {reached} of {newest}", create)
        else:
            newer = f"{table} has version {reached}, and this program knows {newest}"
            yield Finding(Health.WRONG, "table", newer, "update freshq")
        if reached == newest:
            compared = [*structure(self.database, self.schema)]
            yield from compared
            if all(each.health is Health.OK for each in compared):
                yield from rights(self.database, self.schema)
        yield from self._durability()
        yield from self._encryption()

    def _durability(self) -> Iterator[Finding]:
        """Look whether commits survive a crash of the server."""
        yield from durability(self.database, self.schema, DURABLE[self.database.dialect])

    def _encryption(self) -> Iterator[Finding]:
        """Check whether a password went to another machine in clear text."""
        url, query = self.database.engine.url, ENCRYPTED.get(self.database.dialect)
        if query is None or url.password is None or url.host in (None, "", *LOCAL_HOSTS):
            return
        if self.database.rows(query, {})[0][0]:
            yield Finding(Health.OK, "encryption", f"TLS to {url.host}")
        else:
            clear = f"the password goes to {url.host} without TLS"
            yield Finding(Health.WARNING, "encryption", clear, "see docs/sql.md, Encryption")

    @override
    def caller(self) -> str:
        query = USERS.get(self.database.dialect)
        if query is None:
            return super().caller()
        return f"{self.database.rows(query, {})[0][0]} ({super().caller()})"

    @override
    def erase(self, queue: str, task_ids: Collection[str], group: str | None) -> Iterator[Finding]:
        events = self.history.forget(queue, task_ids, group)
        yield Finding(Health.OK, "history", f"the group erased from {events:,} events")
        if self.database.dialect == "sqlite":
            self.database.read(lambda connection: connection.exec_driver_sql("VACUUM").close())
            busy = self.database.rows(sa.text("PRAGMA wal_checkpoint(TRUNCATE)"), {})[0][0]
            if not busy:
                yield Finding(Health.OK, "file", "rewritten without the erased data")
                return
        yield Finding(
            Health.WARNING,
            "database",
            "old versions of the rows in its files and logs",
            "until VACUUM, or the purge of InnoDB, has removed them",
        )
        yield Finding(
            Health.WARNING,
            "backups",
            "replicas, archived logs and backups",
            "until they expire where they are",
        )

    @override
    def with_dead_rows(self, stats: Stats) -> Stats:
        return self.horizon.with_dead_rows(stats)

    @override
    def close(self) -> None:
        """Close the connections if the store opened the engine; later calls reconnect."""
        self.notifier.close()
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
        queue=queue_name(others),
        limits=connection_limits_for(others.get("lease_seconds"), **given),
        history_seconds=history_seconds_for(history, history_seconds),
    )
    return store, others
