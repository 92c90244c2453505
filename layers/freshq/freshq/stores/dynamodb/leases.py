"""The lease record: how the sweep finds what a process held when it died.

A taken task is in no index, which keeps a claim at two write units. Instead each process keeps one
record that names all the tasks it holds, indexed by the time to look at it. The record is written
before the claims that it covers, so that at no point a task is taken without being named.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Final

from freshq.stores.dynamodb.items import LEASE_PREFIX, Item, milliseconds, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.items import Keyspace

# A record whose process died is deleted by the sweep; TTL is only the last resort, a week later.
RECORD_TTL_SECONDS: Final = 7 * 86_400


@dataclass
class _Record:
    record_id: str
    held: dict[str, float] = field(default_factory=dict)
    due_at: float = float("inf")


class LeaseLedger:
    """Keeps the lease record of this process for one table. Thread-safe."""

    def __init__(self, calls: TableCalls, keyspace: Keyspace) -> None:
        """Hold nothing yet."""
        self._calls = calls
        self._keyspace = keyspace
        self._lock = threading.Lock()
        self._records: dict[str, _Record] = {}

    def cover(self, queue: str, task_ids: Sequence[str], lease_until: float, now: float) -> None:
        """Name tasks in the record, before they are claimed or their lease is shortened.

        Args:
            queue: Name of the queue.
            task_ids: The tasks.
            lease_until: Until when they will be held, in seconds.
            now: Current time in seconds.
        """
        with self._lock:
            record = self._usable_record(queue, now)
            held = record.held | dict.fromkeys(task_ids, lease_until)
            earliest = min(held.values())
            # Moving a record in its index costs two more write units than rewriting it in place, so
            # it is looked at too early now and then, but never late.
            halfway = now + (lease_until - now) / 2
            due_at = record.due_at if halfway <= record.due_at <= earliest else earliest
            self._calls.put(self._item(queue, record.record_id, sorted(held), due_at))
            record.held, record.due_at = held, due_at

    def extend(self, queue: str, task_id: str, lease_until: float, now: float) -> None:
        """Take note that a lease will end at `lease_until`, before it is changed."""
        with self._lock:
            record = self._records.get(queue)
            named = record is not None and task_id in record.held and record.due_at <= lease_until
            if named and record is not None:
                record.held[task_id] = lease_until
        if not named:
            self.cover(queue, [task_id], lease_until, now)

    def drop(self, queue: str, task_id: str) -> None:
        """Take note that a task is held no more; the record itself is corrected at its next writing."""
        with self._lock:
            if queue in self._records:
                self._records[queue].held.pop(task_id, None)

    def close(self) -> None:
        """Delete the records that name nothing held; the others stay for the sweep."""
        with self._lock:
            for record in self._records.values():
                if not record.held:
                    self._calls.delete(record.record_id)
            self._records.clear()

    def _usable_record(self, queue: str, now: float) -> _Record:
        """Return the record to write to: a new one where the sweep is to act on the one so far."""
        record = self._records.get(queue)
        if record is None or any(until <= now for until in record.held.values()):
            live = (
                {}
                if record is None
                else {task_id: until for task_id, until in record.held.items() if until > now}
            )
            record = _Record(f"{LEASE_PREFIX}{queue}#{uuid.uuid4().hex}", live)
            self._records[queue] = record
        return record

    def _item(self, queue: str, record_id: str, task_ids: Sequence[str], due_at: float) -> Item:
        return {
            "taskId": {"S": record_id},
            "taskIds": {"SS": list(task_ids)},
            "dueShard": {"S": self._keyspace.due(queue, self._keyspace.shard_of(record_id))},
            "dueAt": milliseconds(due_at),
            "requestToken": {"S": uuid.uuid4().hex},
            "ttl": {"N": str(ceil(due_at) + RECORD_TTL_SECONDS)},
        }


def named_ids(record: Item) -> list[str]:
    """Return the ids that a lease record names."""
    return list(record["taskIds"]["SS"])


def due_at(record: Item) -> float:
    """Return when a lease record is to be looked at, in seconds."""
    return seconds(record["dueAt"])
