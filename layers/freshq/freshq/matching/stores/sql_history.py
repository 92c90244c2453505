"""The history of resources and callers in a relational database, written in the transaction of each change.

The store itself writes it, unlike that of tasks: all changes go through one method, and every program that
changes resources calls it. Where no history is kept, the statement finds no switch and writes nothing. Where
an older version created the tables, those of histories are missing, and the store sends no statement.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

import sqlalchemy as sa
from typing_extensions import override

from freshq.matching.lives import caller_events, numbered, queues_of, resource_events
from freshq.stores.sql.history import SqlHistory
from freshq.stores.sql.rows import microseconds
from freshq.stores.sql.schema import NAME_BYTES, NO_BATCH, key_text, long_text, schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from freshq.matching.lives import Event
    from freshq.matching.stores.base import Change
    from freshq.stores.sql.database import Database

# Most lives whose events one call of `prune` deletes.
PRUNE_LIVES: Final = 1_000


class MatchHistory(SqlHistory):
    """The histories of the resources of a table and of its callers. Thread-safe."""

    command: ClassVar = "freshq match create"

    def __init__(self, database: Database, table: str) -> None:
        """Send nothing yet.

        Args:
            database: The database.
            table: Name of the table of resources; the names of the others begin with it.
        """
        parts = schema(f"{table}_lives", database.dialect)
        history = _history(f"{table}_lives_history", database.dialect)
        super().__init__(database, replace(parts, history=history))
        self.queues = queues_of(table)
        self.tables = (parts.records, parts.histories, history)
        self._insert = _insert_if_kept(history, parts.histories)

    def create_tables(self, connection: sa.Connection) -> None:
        """Create the tables that are missing."""
        for table in self.tables:
            table.create(connection, checkfirst=True)

    def drop_tables(self, connection: sa.Connection) -> None:
        """Drop the tables that are there."""
        for table in self.tables:
            table.drop(connection, checkfirst=True)

    def keep(self, seconds: float) -> None:
        """Keep the histories for some time; 0: end them."""
        for queue in self.queues:
            if seconds > 0:
                self.begin(queue, seconds)
            else:
                self.end(queue)

    def check_all(self) -> None:
        """Check that the histories are kept.

        Raises:
            TableMissing: If they are not.
        """
        for queue in self.queues:
            self.check(queue)

    def write(self, connection: sa.Connection, change: Change) -> None:
        """Write the events of a change, in its transaction, if the histories are kept."""
        resources, callers = self.queues
        rows = [
            *_rows(resources, resource_events(change.before, change.after, change.at)),
            *_rows(callers, caller_events(change.caller_before, change.caller_after, change.at)),
        ]
        if rows and self.exists(connection):
            connection.execute(self._insert, rows)

    def prune_all(self, now: float) -> None:
        """Delete some of the events that are past their retention.

        Args:
            now: The time, in seconds since the epoch.
        """
        for queue in self.queues:
            self.prune(queue, now, PRUNE_LIVES)

    @override
    def begin_writing(self, connection: sa.Connection) -> None:
        return

    @override
    def end_writing(self, connection: sa.Connection) -> None:
        return

    @override
    def events_of(self, history_id: str, queue: str, row: sa.Row[Any]) -> Iterator[dict[str, Any]]:
        event = json.loads(row.event) | {"queue": queue}
        return numbered(iter([event]), f"{history_id}-{row.event_id}", str(row.event_id))


def _rows(queue: str, events: Iterator[Event]) -> Iterator[Mapping[str, Any]]:
    for event in events:
        at_us = microseconds(event["stream_ms"] / 1000)
        yield {"of_queue": queue, "new_at_us": at_us, "new_event": json.dumps(event)}


@lru_cache(maxsize=16)
def _history(name: str, dialect: str) -> sa.Table:
    options: dict[str, Any] = {}
    if dialect == "sqlite":
        options["sqlite_autoincrement"] = True  # or it would use the numbers of deleted rows again
    elif dialect in ("mysql", "mariadb"):
        options[f"{dialect}_charset"] = "utf8mb4"
    history = sa.Table(
        name,
        sa.MetaData(),
        sa.Column("event_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("queue", key_text(NAME_BYTES), nullable=False),
        sa.Column("batch", sa.BigInteger, nullable=False, server_default=sa.text(str(NO_BATCH))),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("event", long_text(), nullable=False),
        **options,
    )
    sa.Index(f"{name}_batches", history.c.queue, history.c.batch, history.c.event_id)
    return history


def _insert_if_kept(history: sa.Table, histories: sa.Table) -> sa.Insert:
    """Return the statement that writes an event if a history of its queue is kept."""
    at_us = sa.cast(sa.bindparam("new_at_us", type_=sa.BigInteger), sa.BigInteger)
    event = sa.cast(sa.bindparam("new_event", type_=sa.Text), sa.Text)
    kept = histories.c.queue == sa.bindparam("of_queue")
    found = sa.select(histories.c.queue, at_us, event).where(kept)
    return sa.insert(history).from_select(["queue", "at_us", "event"], found)
