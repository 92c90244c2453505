"""Begins, reads, batches, prunes and ends the histories of the queues of a table."""

from __future__ import annotations

import json
import logging
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import sqlalchemy as sa
from typing_extensions import override

from freshq.errors import StoreError, TableMissing
from freshq.model.json_values import json_text
from freshq.model.lifecycle import new_token
from freshq.stores.history import History, Kept
from freshq.stores.sql.failures import RightsMissing
from freshq.stores.sql.history.events import landed_events
from freshq.stores.sql.history.statements import HistoryStatements
from freshq.stores.sql.history.triggers import Triggers
from freshq.stores.sql.migrations import alone, lock_changes
from freshq.stores.sql.rows import microseconds
from freshq.stores.sql.schema import NO_BATCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from freshq.stores.sql.database import Database
    from freshq.stores.sql.schema import Schema

logger = logging.getLogger(__name__)

# The shared record with the numbers of batches.
STATE: Final = "freshq#history"
# Events in a batch, which is one file of a pull, and in one statement.
BATCH_EVENTS: Final = 10_000
STATEMENT_EVENTS: Final = 1_000
# How often a process checks for events that are past their retention, while it finds none.
CHECK_INTERVAL_SECONDS: Final = 60.0
# Puts, claims and ends leave so many events for each task, at least.
EVENTS_PER_TASK: Final = 4


class _Numbers(NamedTuple):
    """The numbers of the last batch, and of the last of which something was deleted."""

    last_batch: int = 0
    pruned_batch: int = 0


class SqlHistory(History):
    """The histories of the queues of a table. Thread-safe.

    Events get their numbers before their transaction commits, so a later number may be visible earlier.
    Reading "what is after the last number" would lose events. So `add_batches` gives a batch number to all
    committed events that have none; what commits later is in a later batch.

    Attributes:
        command: The command that begins a history.
    """

    command: ClassVar = "freshq table create"

    def __init__(self, database: Database, schema: Schema) -> None:
        self._database = database
        self._schema = schema
        self._sql = HistoryStatements.shared(schema, database.engine.dialect)
        # By queue: when to check for old events again, in seconds.
        self._check_at: dict[str, float] = {}
        self._told_of_rights = False
        self._has_tables = False

    def begin(self, queue: str, keep_seconds: float) -> None:
        """Keep a history of a queue from now on, or change how long it is kept.

        Triggers that are missing are created again.
        """

        def begin(connection: sa.Connection) -> None:
            lock_changes(connection, self._schema.migrations.name)
            self.begin_writing(connection)
            where = {"of_queue": queue}
            if connection.execute(self._sql.switch, where).one_or_none() is not None:
                connection.execute(self._sql.keep, where | {"seconds": keep_seconds})
                return
            connection.execute(self._sql.add, {"queue": queue, "name": STATE} | _record(_Numbers()))
            switch = {"queue": queue, "history_id": new_token(), "keep_seconds": keep_seconds}
            connection.execute(self._schema.histories.insert(), switch)

        with alone(self._database, self._schema.migrations.name):
            self._database.transaction(begin)

    def end(self, queue: str) -> None:
        """Keep no history of a queue any more, and delete what there is."""

        def switch_off(connection: sa.Connection) -> None:
            lock_changes(connection, self._schema.migrations.name)
            if not connection.execute(self._sql.switch_off, {"of_queue": queue}).rowcount:
                return
            if not connection.execute(self._sql.any_switch).scalar_one():
                self.end_writing(connection)

        with alone(self._database, self._schema.migrations.name):
            self._database.transaction(switch_off)
        while self._database.transaction(lambda connection: self._delete(connection, queue)):
            pass
        this = {"of_queue": queue, "of_name": STATE}
        self._database.transaction(lambda connection: connection.execute(self._sql.drop_state, this))

    def begin_writing(self, connection: sa.Connection) -> None:
        """Have the database write events, also for a history that exists: a backup may lack the triggers."""
        Triggers(self._schema, connection).create_missing()

    def end_writing(self, connection: sa.Connection) -> None:
        """Have the database write no events any more."""
        Triggers(self._schema, connection).drop()

    def check(self, queue: str) -> sa.Row[Any]:
        """Return the id of the history of a queue, and how long it is kept.

        Raises:
            TableMissing: If the queue keeps none.
        """
        switch = self._switch(queue)
        if switch is None:
            msg = (
                f"history: queue {queue!r} keeps none yet; call create_table() with history=True, or run "
                f"`{self.command}` with ?history=on in the address"
            )
            raise TableMissing(msg)
        return switch

    def exists(self, connection: sa.Connection) -> bool:
        """Return whether the tables of histories exist: an older version of freshq made none.

        Once they do, they are not looked for again. Until then every call looks: another process may create
        them and begin a history.
        """
        if not self._has_tables:
            self._has_tables = sa.inspect(connection).has_table(self._schema.history.name)
        return self._has_tables

    def _switch(self, queue: str) -> sa.Row[Any] | None:
        """Return the id of the history of a queue, and how long it is kept; None if it keeps none."""
        if not self._database.read(self.exists):
            return None
        return self._database.row(self._sql.switch, {"of_queue": queue})

    @override
    def kept(self, queue: str) -> Kept | None:
        switch = self._switch(queue)
        if switch is None:
            return None
        state = self._database.row(self._sql.read, {"of_queue": queue, "of_name": STATE})
        if state is None:
            return None
        numbers = _Numbers(**json.loads(state.record))
        return Kept(switch.history_id, numbers.pruned_batch + 1, numbers.last_batch)

    @override
    def add_batches(self, queue: str) -> None:
        where = {"of_queue": queue, "of_batch": NO_BATCH, "page": BATCH_EVENTS}

        def add_batch(connection: sa.Connection) -> int:
            numbers = self._locked(connection, queue)
            event_ids = connection.execute(self._sql.first_of_batch, where).scalars().all()
            new = numbers._replace(last_batch=numbers.last_batch + 1)
            for some in _portions(event_ids):
                batch = {"event_ids": some, "new_batch": new.last_batch}
                connection.execute(self._sql.put_into_batch, batch)
            if event_ids:
                self._write(connection, queue, new)
            return len(event_ids)

        # A transaction, which on SQLite keeps other writers out, only if there is work for it.
        while self._database.rows(self._sql.first_of_batch, where | {"page": 1}):
            if self._database.transaction(add_batch) < BATCH_EVENTS:
                return

    @override
    def events(self, queue: str, batch: int) -> list[dict[str, Any]]:
        history_id = self.check(queue).history_id
        rows = self._database.rows(self._sql.events, {"of_queue": queue, "of_batch": batch})
        return [event for row in rows for event in self.events_of(history_id, queue, row)]

    def events_of(self, history_id: str, queue: str, row: sa.Row[Any]) -> Iterable[dict[str, Any]]:
        """Return the landed events of a row."""
        return landed_events(history_id, queue, row)

    def prune(self, queue: str, now: float, limit: int) -> int:
        """Delete some of the events that are past their retention.

        A user without the rights to do so deletes none, and a warning says so once: to delete events is up to
        others then, and no reason to claim no task.

        Args:
            queue: Name of the queue.
            now: Its time, in seconds.
            limit: Delete the events of about so many tasks.

        Returns:
            How many tasks that is about: at most `limit`, and less if no more are left.
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
        first = self._database.rows(self._sql.oldest, {"of_queue": queue, "page": 1})
        if not first or first[0].at_us >= before_us:
            return 0

        def prune(connection: sa.Connection) -> int:
            numbers = self._locked(connection, queue)
            deleted = self._delete(connection, queue, before_us, page)
            if deleted:
                # What was in no batch yet would have been in the next: its number is used up.
                pruned = min(deleted[-1].batch, numbers.last_batch + 1)
                self._write(connection, queue, _Numbers(max(numbers.last_batch, pruned), pruned))
            return len(deleted)

        return self._database.transaction(prune)

    def _delete(
        self, connection: sa.Connection, queue: str, before_us: int = NO_BATCH, page: int = BATCH_EVENTS
    ) -> list[sa.Row[Any]]:
        """Delete the oldest events of a queue, up to the first that is too new; return them."""
        oldest = connection.execute(self._sql.oldest, {"of_queue": queue, "page": page}).all()
        old = list(takewhile(lambda row: row.at_us < before_us, oldest))
        for some in _portions([row.event_id for row in old]):
            connection.execute(self._sql.delete, {"event_ids": some})
        return old

    def _locked(self, connection: sa.Connection, queue: str) -> _Numbers:
        """Return the numbers of the batches, locked until the transaction ends.

        Raises:
            StoreError: If the history has just been ended.
        """
        row = connection.execute(self._sql.lock_state, {"of_queue": queue, "of_name": STATE}).one_or_none()
        if row is None:
            msg = f"history: that of queue {queue!r} has just been ended"
            raise StoreError(msg)
        return _Numbers(**json.loads(row.record))

    def _write(self, connection: sa.Connection, queue: str, numbers: _Numbers) -> None:
        """Write the numbers of the batches, which the transaction has locked."""
        this = {"of_queue": queue, "of_name": STATE}
        connection.execute(self._sql.change_state, this | _record(numbers))


def _record(numbers: _Numbers) -> dict[str, str]:
    """Return the columns of the shared record that change with the numbers."""
    return {"record": json_text(numbers._asdict()), "version": new_token()}


def _portions(event_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(event_ids), STATEMENT_EVENTS):
        yield event_ids[start : start + STATEMENT_EVENTS]
