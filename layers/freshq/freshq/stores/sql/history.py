"""Keep every change of a queue's tasks as an event, written by triggers."""

from __future__ import annotations

import json
import logging
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import sqlalchemy as sa
from typing_extensions import override

from freshq.errors import StoreError, TableMissing, quoted
from freshq.model.checks import checked_seconds
from freshq.model.codec import SCHEMA_VERSION, holder
from freshq.model.fields import EVENT_FIELDS, FieldType, without_missing
from freshq.model.lifecycle import new_token
from freshq.model.task import TaskStatus
from freshq.model.validation import json_text
from freshq.stores.base import History, Kept
from freshq.stores.sql.failures import RightsMissing
from freshq.stores.sql.migrations import REMOVE, Triggers, alone, lock_changes
from freshq.stores.sql.rows import microseconds
from freshq.stores.sql.schema import NO_BATCH
from freshq.stores.sql.statements import TextStatements

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from sqlalchemy import Row

    from freshq.stores.sql.database import Database
    from freshq.stores.sql.schema import Schema

DEFAULT_SECONDS: Final = 7 * 86_400.0
logger = logging.getLogger(__name__)
# The shared record with the numbers of batches.
STATE: Final = "freshq#history"
# Events in a batch (one file of a pull) and in one statement.
BATCH_EVENTS: Final = 10_000
STATEMENT_EVENTS: Final = 1_000
# Seconds between checks for events past their retention, while a process finds none.
CHECK_INTERVAL_SECONDS: Final = 60.0
# Columns are in microseconds and millionths, times of events in milliseconds.
UNITS_IN_COLUMN: Final = {FieldType.TIME: 1e3, FieldType.REAL: 1e6}
# Each task leaves at least this many events: put, claim and end.
EVENTS_PER_TASK: Final = 4


def landed_events(history_id: str, row: Row[Any]) -> Iterator[dict[str, Any]]:
    """Yield the event of a row, or two if one write claimed a task and ended the claim.

    Args:
        history_id: Id of the history; it makes the ids of events globally unique.
        row: All columns of a row of the history.
    """
    event = _event(row)
    name = f"{history_id}-{row.event_id}"
    if row.claimed_us is not None:
        claim = {"event_id": f"{name}-claim", "sequence": str(2 * row.event_id), "change": "MODIFY"}
        claim |= {"status": TaskStatus.TAKEN.value, "updated_ms": row.claimed_us / 1000}
        claim |= {"attempts": row.claimed_attempts}
        ended = ("lease", "worker", "not_before_ms", "shed_reason")
        yield {field: value for field, value in (event | claim).items() if field not in ended}
    yield event | {"event_id": name, "sequence": str(2 * row.event_id + 1)}


def _event(row: Row[Any]) -> dict[str, Any]:
    """Return an event without its id and number, and without fields the task lacks."""
    event: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "change": row.change_kind,
        "stream_ms": row.at_us / 1000,
        "ttl_removal": bool(row.ttl_removal),
    }
    columns = row._mapping  # noqa: SLF001 - SQLAlchemy's name for the row as a mapping
    for field in EVENT_FIELDS:
        value = columns[field.column]
        units = UNITS_IN_COLUMN.get(field.kind)
        event[field.event] = value if units is None or value is None else value / units
    if row.change_kind == REMOVE:
        del event["updated_ms"]  # the time of the removal is `stream_ms`
    event |= holder(row.lease_token)
    return without_missing(event)


def history_seconds_for(history: object, seconds: float | None) -> float | None:
    """Return how long to keep a history, in seconds: 0 to keep none, None to leave the setting unchanged.

    Args:
        history: Whether to keep a history; None to leave the setting unchanged.
        seconds: Retention; None for a week.

    Raises:
        ValueError: If an argument is wrong.
    """
    if history not in (True, False, None):
        msg = f"history: must be True or False (in an address, on or off), got {quoted(history)}"
        raise ValueError(msg)
    if seconds is not None and not history:
        raise ValueError("history_seconds: only with history=True")
    if not history:
        return None if history is None else 0.0
    return checked_seconds(
        "history_seconds", DEFAULT_SECONDS if seconds is None else seconds, above_zero=True
    )


class _Numbers(NamedTuple):
    """Numbers of the last batch, and of the last batch that lost events to pruning."""

    last_batch: int = 0
    pruned_batch: int = 0


class SqlHistory(History):
    """The histories of the queues of a table. Thread-safe.

    Events get their numbers before their transaction commits, so a higher number may become visible first,
    and a reader that continues after the last number would miss events. So `add_batches` gives a batch number
    to all committed events without one; events that commit later join a later batch.

    Attributes:
        command: The command that begins a history.
    """

    command: ClassVar = "freshq table create"

    def __init__(self, database: Database, schema: Schema) -> None:
        self._database = database
        self._schema = schema
        self._sql = TextStatements.shared(schema, database.engine.dialect).statement
        # By queue: when to check for old events again, in seconds.
        self._check_at: dict[str, float] = {}
        self._told_of_rights = False

    def begin(self, queue: str, keep_seconds: float) -> None:
        """Start keeping a history of a queue, or change its retention.

        Missing triggers are created again.
        """

        def begin(connection: sa.Connection) -> None:
            lock_changes(connection, self._schema.migrations.name)
            self.begin_writing(connection)
            where = {"of_queue": queue}
            if connection.execute(self._sql("switch"), where).one_or_none() is not None:
                connection.execute(self._sql("keep"), where | {"seconds": keep_seconds})
                return
            connection.execute(self._sql("add_record"), where | {"of_name": STATE} | _record(_Numbers()))
            switch = {"queue": queue, "history_id": new_token(), "keep_seconds": keep_seconds}
            connection.execute(self._schema.histories.insert(), switch)

        with alone(self._database, self._schema.migrations.name):
            self._database.transaction(begin)

    def end(self, queue: str) -> None:
        """Stop keeping the history of a queue, and delete its events."""

        def switch_off(connection: sa.Connection) -> None:
            lock_changes(connection, self._schema.migrations.name)
            if not connection.execute(self._sql("switch_off"), {"of_queue": queue}).rowcount:
                return
            if not connection.execute(self._sql("any_switch")).scalar_one():
                self.end_writing(connection)

        with alone(self._database, self._schema.migrations.name):
            self._database.transaction(switch_off)
        while self._database.transaction(lambda connection: self._delete(connection, queue)):
            pass
        this = {"of_queue": queue, "of_name": STATE}
        self._database.transaction(lambda connection: connection.execute(self._sql("drop_record"), this))

    def begin_writing(self, connection: sa.Connection) -> None:
        """Create the triggers, even if a history exists: a restored backup may lack them."""
        Triggers.of(self._schema, connection).create_missing(connection)

    def end_writing(self, connection: sa.Connection) -> None:
        """Drop the triggers, so that the database writes no more events."""
        Triggers.of(self._schema, connection).drop(connection)

    def check(self, queue: str) -> sa.Row[Any]:
        """Return the id and the retention of a queue's history.

        Raises:
            TableMissing: If the queue keeps no history.
        """
        switch = self._switch(queue)
        if switch is None:
            msg = (
                f"history: queue {queue!r} keeps none yet; call create_table() with history=True, or run "
                f"`{self.command}` with ?history=on in the address"
            )
            raise TableMissing(msg)
        return switch

    def _switch(self, queue: str) -> sa.Row[Any] | None:
        """Return the id and the retention of a queue's history; None if it keeps none."""
        return self._database.row(self._sql("switch"), {"of_queue": queue})

    @override
    def kept(self, queue: str) -> Kept | None:
        switch = self._switch(queue)
        if switch is None:
            return None
        state = self._database.row(self._sql("read_record"), {"of_queue": queue, "of_name": STATE})
        if state is None:
            return None
        numbers = _Numbers(**json.loads(state.record))
        return Kept(switch.history_id, numbers.pruned_batch + 1, numbers.last_batch)

    @override
    def add_batches(self, queue: str) -> None:
        where = {"of_queue": queue, "batch": NO_BATCH, "page": BATCH_EVENTS}

        def add_batch(connection: sa.Connection) -> int:
            numbers = self._locked(connection, queue)
            event_ids = connection.execute(self._sql("first_of_batch"), where).scalars().all()
            new = numbers._replace(last_batch=numbers.last_batch + 1)
            for some in _portions(event_ids):
                batch = {"event_ids": some, "new_batch": new.last_batch}
                connection.execute(self._sql("put_into_batch"), batch)
            if event_ids:
                self._write(connection, queue, new)
            return len(event_ids)

        # Begin a transaction only if there is work: on SQLite it keeps other writers out.
        while self._database.rows(self._sql("first_of_batch"), where | {"page": 1}):
            if self._database.transaction(add_batch) < BATCH_EVENTS:
                return

    @override
    def events(self, queue: str, batch: int) -> list[dict[str, Any]]:
        history_id = self.check(queue).history_id
        rows = self._database.rows(self._sql("events"), {"of_queue": queue, "batch": batch})
        return [event for row in rows for event in self.events_of(history_id, row)]

    def events_of(self, history_id: str, row: sa.Row[Any]) -> Iterable[dict[str, Any]]:
        """Return the events of a row in landed form."""
        return landed_events(history_id, row)

    def forget(self, queue: str, task_ids: Collection[str], group: str | None) -> int:
        """Erase the group from the events of the given tasks, or of all tasks of a group; return how many."""
        events = self._schema.history
        these = events.c.task_id.in_(task_ids) if group is None else events.c.task_group == group
        erased = sa.update(events).values(task_group=None)
        erased = erased.where(events.c.queue == queue, these, events.c.task_group.is_not(None))
        return self._database.transaction(lambda connection: connection.execute(erased).rowcount)

    def prune(self, queue: str, now: float, limit: int) -> int:
        """Delete a portion of the events that are past their retention.

        If the database's user has no right to delete events, log one warning and delete none. Someone else
        must then delete old events; claims continue.

        Args:
            queue: Name of the queue.
            now: Its time, in seconds.
            limit: Number of tasks whose events to delete, approximately.

        Returns:
            The approximate number of tasks whose events were deleted; less than `limit` if none are left.
        """
        check_at = self._check_at.get(queue)
        if check_at is not None and check_at - CHECK_INTERVAL_SECONDS <= now < check_at:
            return 0
        page = limit * EVENTS_PER_TASK
        pruned = 0
        try:
            pruned = self._prune_page(queue, now, page)
        except RightsMissing as missing:
            self._tell_of_rights(missing)
        if pruned < page:
            self._check_at[queue] = now + CHECK_INTERVAL_SECONDS
        return min(limit, pruned)

    def _tell_of_rights(self, missing: RightsMissing) -> None:
        if not self._told_of_rights:
            self._told_of_rights = True
            logger.warning("old events of histories are not deleted by this process: %s", missing)

    def _prune_page(self, queue: str, now: float, page: int) -> int:
        switch = self._switch(queue)
        if switch is None:
            return 0
        before_us = microseconds(now - switch.keep_seconds)
        first = self._database.rows(self._sql("oldest_events"), {"of_queue": queue, "page": 1})
        if not first or first[0].at_us >= before_us:
            return 0

        def prune(connection: sa.Connection) -> int:
            numbers = self._locked(connection, queue)
            deleted = self._delete(connection, queue, before_us, page)
            if deleted:
                # The unbatched events would have been in the next batch, so its number is used up.
                pruned = min(deleted[-1].batch, numbers.last_batch + 1)
                self._write(connection, queue, _Numbers(max(numbers.last_batch, pruned), pruned))
            return len(deleted)

        return self._database.transaction(prune)

    def _delete(
        self, connection: sa.Connection, queue: str, before_us: int = NO_BATCH, page: int = BATCH_EVENTS
    ) -> list[sa.Row[Any]]:
        """Delete the oldest events of a queue, up to the first within its retention; return them.

        Skip those that another transaction has locked.
        """
        oldest = connection.execute(self._sql("oldest_events"), {"of_queue": queue, "page": page}).all()
        old = list(takewhile(lambda row: row.at_us < before_us, oldest))
        deleted: set[int] = set()
        for some in _portions([row.event_id for row in old]):
            locked = connection.execute(self._sql("lock_events"), {"event_ids": some}).scalars().all()
            if locked:
                connection.execute(self._sql("delete_events"), {"event_ids": locked})
                deleted.update(locked)
        return [row for row in old if row.event_id in deleted]

    def _locked(self, connection: sa.Connection, queue: str) -> _Numbers:
        """Return the numbers of the batches, and lock them until the transaction ends.

        Raises:
            StoreError: If the history has just been ended.
        """
        this = {"of_queue": queue, "of_name": STATE}
        row = connection.execute(self._sql("lock_record"), this).one_or_none()
        if row is None:
            msg = f"history: that of queue {queue!r} has just been ended"
            raise StoreError(msg)
        return _Numbers(**json.loads(row.record))

    def _write(self, connection: sa.Connection, queue: str, numbers: _Numbers) -> None:
        """Write the locked numbers of the batches."""
        this = {"of_queue": queue, "of_name": STATE}
        connection.execute(self._sql("change_locked_record"), this | _record(numbers))


def _record(numbers: _Numbers) -> dict[str, str]:
    """Return the changed columns of the shared record of the numbers."""
    return {"record": json_text(numbers._asdict()), "version": new_token()}


def _portions(event_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(event_ids), STATEMENT_EVENTS):
        yield event_ids[start : start + STATEMENT_EVENTS]
