"""The statements of histories."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from freshq.stores.sql.schema import NO_BATCH
from freshq.stores.sql.shared_records import RecordStatements

if TYPE_CHECKING:
    from freshq.stores.sql.statements import Conditions


class HistoryStatements(RecordStatements):
    """The statements of histories. None waits for a row that a transaction holds."""

    @cached_property
    def _of_queue(self) -> sa.ColumnElement[bool]:
        return self.schema.history.c.queue == sa.bindparam("of_queue")

    @cached_property
    def _in_batch(self) -> Conditions:
        return (self._of_queue, self.schema.history.c.batch == sa.bindparam("of_batch"))

    @cached_property
    def switch(self) -> sa.Select[Any]:
        """The id of the history of a queue, and how long it is kept."""
        histories = self.schema.histories
        columns = sa.select(histories.c.history_id, histories.c.keep_seconds)
        return columns.where(histories.c.queue == sa.bindparam("of_queue"))

    @cached_property
    def any_switch(self) -> sa.Select[Any]:
        """Whether any queue of the table keeps a history."""
        return sa.select(sa.exists().select_from(self.schema.histories))

    @cached_property
    def keep(self) -> sa.Update:
        """Change how long a history is kept."""
        histories = self.schema.histories
        this = histories.c.queue == sa.bindparam("of_queue")
        return sa.update(histories).where(this).values(keep_seconds=sa.bindparam("seconds"))

    @cached_property
    def switch_off(self) -> sa.Delete:
        """Keep no history of a queue any more."""
        histories = self.schema.histories
        return sa.delete(histories).where(histories.c.queue == sa.bindparam("of_queue"))

    @cached_property
    def lock_state(self) -> sa.Select[Any]:
        """A shared record, locked until the transaction ends."""
        return self.read.with_for_update()

    @cached_property
    def change_state(self) -> sa.Update:
        """Change a shared record that the transaction has locked."""
        new: dict[str, Any] = {"record": sa.bindparam("record"), "version": sa.bindparam("version")}
        return sa.update(self.schema.records).where(*self._this).values(new)

    @cached_property
    def drop_state(self) -> sa.Delete:
        """Delete a shared record."""
        return sa.delete(self.schema.records).where(*self._this)

    @cached_property
    def first_of_batch(self) -> sa.Select[Any]:
        """The numbers of the first events of a batch that no other transaction holds."""
        event_id = self.schema.history.c.event_id
        page = sa.select(event_id).where(*self._in_batch).order_by(event_id).limit(sa.bindparam("page"))
        return page.with_for_update(skip_locked=True)

    @cached_property
    def _listed_events(self) -> sa.ColumnElement[bool]:
        return self.schema.history.c.event_id.in_(sa.bindparam("event_ids", expanding=True))

    @cached_property
    def put_into_batch(self) -> sa.Update:
        """Put events into a batch."""
        number = sa.bindparam("new_batch", type_=sa.BigInteger)
        return sa.update(self.schema.history).where(self._listed_events).values(batch=number)

    @cached_property
    def events(self) -> sa.Select[Any]:
        """The events of a batch."""
        history = self.schema.history
        return sa.select(history).where(*self._in_batch).order_by(history.c.event_id)

    @cached_property
    def oldest(self) -> sa.Select[Any]:
        """The oldest events of a queue that no other transaction holds: those in no batch come last."""
        history = self.schema.history
        columns = sa.select(history.c.event_id, history.c.batch, history.c.at_us)
        page = columns.where(self._of_queue, history.c.batch <= NO_BATCH)
        page = page.order_by(history.c.batch, history.c.event_id).limit(sa.bindparam("page"))
        return page.with_for_update(skip_locked=True)

    @cached_property
    def delete(self) -> sa.Delete:
        """Delete events."""
        return sa.delete(self.schema.history).where(self._listed_events)
