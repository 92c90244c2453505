"""The verbs for an application's records themselves, whatever queue they are in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from freshq.model.checks import checked_id
from freshq.queue.core import Verbs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from freshq.model.task import Task


class RecordStore(Protocol):
    """The operations on an application's records, besides queueing them."""

    def put_record(self, record: Mapping[str, Any], *, merge: bool) -> str:
        """Write a record, or with `merge` some of its attributes; return its id."""

    def get_record(self, record_id: str) -> dict[str, Any] | None:
        """Return the attributes of a record as JSON values; None if it does not exist."""

    def record_key(self, record_id: str) -> dict[str, Any]:
        """Return the key attributes of the record with an id."""

    def delete_record(self, record_id: str, queue: str, now: float, *, force: bool) -> None:
        """Delete a record; with `force` even if it is in a queue."""

    def unqueued(self, start_after: str | None = None) -> Iterator[Task]:
        """Yield the records that are READY, in the order of the table."""


class RecordVerbs(Verbs):
    """Reads, writes and deletes records."""

    _records: RecordStore

    def put_record(self, record: Mapping[str, Any]) -> str:
        """Write a record: a new one, or over the one with its key, which keeps its state in the queue.

        Other attributes of the application are removed. Attributes that are the same as JSON stay as they
        are stored. Of two writers the last wins.

        Args:
            record: Its attributes, the table's key among them: JSON values, also Decimal, bytes and sets.

        Returns:
            Its id.

        Raises:
            ValueError: If the key is missing or wrong, a name begins with `freshq_`, or DynamoDB has no such
                value; nothing was written.
            StoreError: If DynamoDB did not answer.
        """
        return self._records.put_record(record, merge=False)

    def upsert_record(self, record: Mapping[str, Any]) -> str:
        """Write some attributes of a record, or a new one with these. As `put_record`, but removes nothing.

        Raises:
            ValueError: As for `put_record`.
            StoreError: If DynamoDB did not answer.
        """
        return self._records.put_record(record, merge=True)

    def get_record(self, record_id: str) -> dict[str, Any] | None:
        """Return the application's attributes of a record as JSON values; None if it does not exist.

        Raises:
            ValueError: If no record can have this id.
        """
        return self._records.get_record(checked_id(record_id, "record_id"))

    def record_key(self, record_id: str) -> dict[str, Any]:
        """Return the key attributes of the record with an id, as JSON values.

        Raises:
            ValueError: If no record can have this id.
        """
        return self._records.record_key(checked_id(record_id, "record_id"))

    def delete_record(self, record_id: str, *, force: bool = False) -> None:
        """Delete a record from the table.

        Args:
            record_id: Its id.
            force: Delete it even if it is in a queue. A worker that holds it gets LeaseLost.

        Raises:
            ValueError: If no record can have this id.
            TaskNotFound: If the record does not exist.
            AlreadyQueued: If it is PENDING or TAKEN, and `force` is not set.
        """
        self._records.delete_record(checked_id(record_id, "record_id"), self.name, self.now(), force=force)
