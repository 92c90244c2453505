"""Store the records and counts shared by the processes of a queue."""

from __future__ import annotations

import json
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from typing_extensions import override

from freshq.model.forks import new_lock
from freshq.model.lifecycle import new_token
from freshq.model.validation import json_text
from freshq.stores.base import SharedRecord
from freshq.stores.sql.statements import Conditions, SqlPart, Statements, dialect_insert, insert_or_ignore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from freshq.stores.sql.database import Database
    from freshq.stores.sql.schema import Schema

# Seconds within which a process notices that another process paused the queue.
PAUSE_CHECK_SECONDS: Final = 1.0
PAUSED: Final = "freshq#paused"
# Counts are deleted this many seconds after they expire.
EXPIRY_MARGIN_SECONDS: Final = 60


class RecordStatements(Statements):
    """Statements of shared records and counts."""

    @cached_property
    def _this(self) -> Conditions:
        records = self.schema.records
        return (records.c.queue == sa.bindparam("of_queue"), records.c.name == sa.bindparam("of_name"))

    @cached_property
    def read(self) -> sa.Select[Any]:
        """One record."""
        records = self.schema.records
        return sa.select(records.c.record, records.c.version).where(*self._this)

    @cached_property
    def with_prefix(self) -> sa.Select[Any]:
        """The records whose names begin with a prefix."""
        records = self.schema.records
        return sa.select(records.c.record, records.c.version).where(
            records.c.queue == sa.bindparam("of_queue"),
            records.c.name >= sa.bindparam("prefix"),
            records.c.name < sa.bindparam("after_prefix"),
        )

    @cached_property
    def next_queues(self) -> sa.CompoundSelect[Any]:
        """The first names after `of_queue`, each from the beginning of an index."""
        tasks, status = self.tasks, self.tasks.c.status == sa.literal_column("'FAILURE'")
        places: list[tuple[sa.Table, list[sa.ColumnElement[bool]]]] = [
            (self.schema.records, []),
            (self.schema.counts, []),
            (tasks, [tasks.c.line.is_not(None)]),
            (tasks, [status]),
        ]
        return sa.union(
            *(
                sa.select(sa.func.min(table.c.queue)).where(table.c.queue > sa.bindparam("of_queue"), *only)
                for table, only in places
            )
        )

    @cached_property
    def add(self) -> sa.Executable:
        """Insert a record unless its name is taken."""
        insert: sa.Executable = insert_or_ignore(self.schema.records, self.dialect)
        return insert

    @cached_property
    def change(self) -> sa.Update:
        """Change a record if its version is `of_version`."""
        records = self.schema.records
        return (
            sa.update(records)
            .where(*self._this, records.c.version == sa.bindparam("of_version"))
            .values(record=sa.bindparam("record"), version=sa.bindparam("version"))
        )

    @cached_property
    def read_counts(self) -> sa.Select[Any]:
        """The numbers of a record of counts."""
        counts = self.schema.counts
        return sa.select(counts.c.field, counts.c.number).where(
            counts.c.queue == sa.bindparam("of_queue"), counts.c.name == sa.bindparam("of_name")
        )

    @cached_property
    def add_counts(self) -> sa.Executable:
        """Add numbers to the stored ones, or insert them."""
        counts = self.schema.counts
        insert = dialect_insert(counts, self.dialect)
        added: sa.Executable
        if self.dialect.name in ("sqlite", "postgresql"):
            total = counts.c.number + insert.excluded.number
            added = insert.on_conflict_do_update(
                index_elements=list(counts.primary_key),
                set_={"number": total, "expires": insert.excluded.expires},
            )
        else:
            total = counts.c.number + insert.inserted.number
            added = insert.on_duplicate_key_update(number=total, expires=insert.inserted.expires)
        return added

    @cached_property
    def drop_counts(self) -> sa.Delete:
        """Delete the expired counts of a queue."""
        counts = self.schema.counts
        return sa.delete(counts).where(
            counts.c.queue == sa.bindparam("of_queue"), counts.c.expires < sa.bindparam("before")
        )


class SqlRecords(SqlPart):
    """Stores the records and counts shared by the processes of a queue."""

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        super().__init__(database, schema, queue)
        self.record_sql = RecordStatements.shared(schema, database.engine.dialect)
        # By queue: the time of the next check, and whether the queue was paused at the last check.
        self._pauses: dict[str, tuple[float, bool]] = {}
        self._pauses_lock = new_lock()

    @override
    def queue_names(self) -> list[str]:
        names = [""]
        while found := [
            name
            for (name,) in self.database.rows(self.record_sql.next_queues, {"of_queue": names[-1]})
            if name is not None
        ]:
            names.append(min(found))
        return names[1:]

    @override
    def read_record(self, queue: str, name: str) -> SharedRecord | None:
        row = self.database.row(self.record_sql.read, {"of_queue": queue, "of_name": name})
        return None if row is None else SharedRecord(json.loads(row.record), row.version)

    @override
    def read_records(self, queue: str, prefix: str) -> list[SharedRecord]:
        names = {"prefix": prefix, "after_prefix": f"{prefix}~"}  # of digits and letters
        rows = self.database.rows(self.record_sql.with_prefix, {"of_queue": queue} | names)
        return [SharedRecord(json.loads(row.record), row.version) for row in rows]

    @override
    def write_record(self, queue: str, name: str, values: Mapping[str, Any], version: str | None) -> bool:
        new = {"record": json_text(dict(values)), "version": new_token()}
        this = {"of_queue": queue, "of_name": name}

        def write(connection: sa.Connection) -> bool:
            if version is None:
                connection.execute(self.record_sql.add, {"queue": queue, "name": name} | new)
            elif connection.execute(self.record_sql.change, this | new | {"of_version": version}).rowcount:
                return True
            # An earlier attempt may have been committed while its reply was lost.
            row = connection.execute(self.record_sql.read, this).one_or_none()
            return row is not None and row.version == new["version"]

        return self.database.transaction(write)

    @override
    def add_counts(self, queue: str, name: str, counts: Mapping[str, int], expires: int | None) -> None:
        rows = [
            {"queue": queue, "name": name, "field": field, "number": number, "expires": expires}
            for field, number in sorted(counts.items())  # a fixed order avoids deadlocks
        ]
        if not rows:
            return

        def add(connection: sa.Connection) -> None:
            connection.execute(self.record_sql.add_counts, rows)
            if expires is not None:
                expired = {"of_queue": queue, "before": expires - EXPIRY_MARGIN_SECONDS}
                connection.execute(self.record_sql.drop_counts, expired)

        self.database.transaction(add)

    @override
    def read_counts(self, queue: str, name: str) -> dict[str, int]:
        rows = self.database.rows(self.record_sql.read_counts, {"of_queue": queue, "of_name": name})
        return {row.field: int(row.number) for row in rows}

    @override
    def paused(self, queue: str) -> bool:
        with self._pauses_lock:
            check_at, paused = self._pauses.get(queue, (0.0, False))
        if time.monotonic() < check_at:
            return paused
        record = self.read_record(queue, PAUSED)
        return self._note_pause(queue, paused=record is not None and bool(record.values["paused"]))

    def _note_pause(self, queue: str, *, paused: bool) -> bool:
        with self._pauses_lock:
            self._pauses[queue] = (time.monotonic() + PAUSE_CHECK_SECONDS, paused)
        return paused

    @override
    def set_paused(self, queue: str, *, paused: bool) -> None:
        written = False
        while not written:
            record = self.read_record(queue, PAUSED)
            version = None if record is None else record.version
            written = self.write_record(queue, PAUSED, {"paused": paused}, version)
        self._note_pause(queue, paused=paused)
