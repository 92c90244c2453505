"""Store the records and counts shared by the processes of a queue."""

from __future__ import annotations

import json
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from freshq.model.forks import new_lock
from freshq.model.lifecycle import new_token
from freshq.model.validation import json_text
from freshq.stores.base import SharedRecord
from freshq.stores.sql.statements import SqlPart, Statements, dialect_insert

if TYPE_CHECKING:
    from collections.abc import Mapping

    import sqlalchemy as sa

    from freshq.stores.sql.database import Database
    from freshq.stores.sql.schema import Schema

# Seconds within which a process notices that another process paused the queue.
PAUSE_CHECK_SECONDS: Final = 1.0
PAUSED: Final = "freshq#paused"
# Counts are deleted this many seconds after they expire.
EXPIRY_MARGIN_SECONDS: Final = 60


class RecordStatements(Statements):
    """The statement of counts that differs most between databases."""

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
            name for (name,) in self.rows("next_queues", {"of_queue": names[-1]}) if name is not None
        ]:
            names.append(min(found))
        return names[1:]

    @override
    def read_record(self, queue: str, name: str) -> SharedRecord | None:
        row = self.row("read_record", {"of_queue": queue, "of_name": name})
        return None if row is None else SharedRecord(json.loads(row.record), row.version)

    @override
    def read_records(self, queue: str, prefix: str) -> list[SharedRecord]:
        names = {"of_prefix": prefix, "of_after_prefix": f"{prefix}~"}  # of digits and letters
        rows = self.rows("read_records", {"of_queue": queue} | names)
        return [SharedRecord(json.loads(row.record), row.version) for row in rows]

    @override
    def write_record(self, queue: str, name: str, values: Mapping[str, Any], version: str | None) -> bool:
        new = new_token()
        this = {"of_queue": queue, "of_name": name}
        changed = this | {"record": json_text(dict(values)), "version": new, "earlier_version": version}
        statement = self.sql.statement

        def write(connection: sa.Connection) -> bool:
            write_it = statement("add_record" if version is None else "change_record")
            if connection.execute(write_it, changed).rowcount and version is not None:
                return True
            # An earlier attempt may have been committed while its reply was lost.
            row = connection.execute(statement("read_record"), this).one_or_none()
            return row is not None and row.version == new

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
                connection.execute(self.sql.statement("drop_counts"), expired)

        self.database.transaction(add)

    @override
    def read_counts(self, queue: str, name: str) -> dict[str, int]:
        rows = self.rows("read_counts", {"of_queue": queue, "of_name": name})
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
