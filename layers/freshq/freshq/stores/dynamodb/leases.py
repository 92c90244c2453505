"""The lease record: how the sweep finds what a process held when it died.

A taken task is in no index, which keeps a claim at two write units. Instead each process keeps one
record that names all the tasks it holds, indexed by the time to look at it. The record is written
before the claims that it covers, so that at no point a task is taken without being named.

Whoever claims one task at a time would pay one such write for each. Where few are claimed, the record
therefore also names the tasks that come next; when they are claimed, they are covered already.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Final, TypeAlias

from freshq.stores.dynamodb.items import LEASE_PREFIX, milliseconds, seconds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.items import Keyspace
    from freshq.stores.dynamodb.names import Item

# A record whose process died is deleted by the sweep; TTL is only the last resort, a week later.
RECORD_TTL_SECONDS: Final = 7 * 86_400
# A process may stall between naming a task and taking it. DynamoDB refuses requests that were signed
# longer ago than this, so that a record this much older than its leases names nothing that can be taken.
LATE_CLAIM_SECONDS: Final = 900.0

# A task and the lease token that it is held by: a process may hold a task anew while it still has to
# settle, in vain, a lease of the same task that it lost.
Holding: TypeAlias = tuple[str, str]


@dataclass
class _LeaseRecord:
    """The lease record of this process for one queue.

    Attributes:
        record_id: Its id.
        held: What is held, or about to be, until when.
        due_at: When it is looked at, as it was last written.
        held_until: No lease that it covers ends later, as it was last written.
        named: The tasks that it names, as it was last written.
    """

    record_id: str
    held: dict[Holding, float] = field(default_factory=dict)
    due_at: float = float("inf")
    held_until: float = float("-inf")
    named: frozenset[str] = frozenset()

    def covers(self, task_ids: Iterable[str], lease_until: float, now: float) -> bool:
        """Return whether claims of these tasks, until then, need no other writing.

        It must name them, and must not be due before they are taken: a look that finds nothing held
        moves it. The look at `due_at` comes before the lease ends, or at its end, finds the task, and
        keeps the record for as long as it is held. If a claim is so slow, or a sweep's clock so far
        ahead, that the look comes before the claim, the next one is at `held_until`: after the end of
        the lease, by no more than the length of one.
        """
        in_time = now < self.due_at <= lease_until <= self.held_until
        return in_time and self.named.issuperset(task_ids)


class LeaseRecords:
    """Keeps the lease record of this process for one table. Thread-safe."""

    def __init__(self, calls: TableCalls, keyspace: Keyspace) -> None:
        """Hold nothing yet."""
        self._calls = calls
        self._keyspace = keyspace
        self._lock = threading.Lock()
        self._records: dict[str, _LeaseRecord] = {}

    def cover(
        self,
        queue: str,
        holds: Sequence[Holding],
        lease_until: float,
        now: float,
        ahead: Iterable[str] = (),
    ) -> None:
        """Name tasks in the record, before they are claimed or their lease is shortened.

        Args:
            queue: Name of the queue.
            holds: The tasks, each with its lease token.
            lease_until: Until when they will be held, in seconds.
            now: Current time in seconds.
            ahead: Tasks that may be claimed next, named as well if the record is written.
        """
        with self._lock:
            record = self._usable_record(queue, now)
            if record.covers([task_id for task_id, _token in holds], lease_until, now):
                record.held.update(dict.fromkeys(holds, lease_until))
                return
            held = record.held | dict.fromkeys(holds, lease_until)
            earliest = min(held.values())
            # Moving a record in its index costs two more write units than rewriting it in place, so
            # it is looked at too early now and then, but never late.
            halfway = now + (lease_until - now) / 2
            due_at = record.due_at if halfway <= record.due_at <= earliest else earliest
            in_hand = frozenset(task_id for task_id, _token in held)
            named = in_hand.union(ahead)
            held_until = max(held.values())
            if named != in_hand:
                # What is claimed before the record is due, for as long as now.
                held_until = max(held_until, due_at + lease_until - now)
            written = _LeaseRecord(record.record_id, held, due_at, held_until, named)
            self._calls.put(self._item(queue, written))
            self._records[queue] = written

    def extend(self, queue: str, hold: Holding, lease_until: float, now: float) -> None:
        """Take note that a lease will end at `lease_until`, before it is changed."""
        with self._lock:
            record = self._records.get(queue)
            # The sweep may have moved the record to the end that a lease has now, but not past it.
            lengthened = record is not None and record.held.get(hold, float("inf")) <= lease_until
            named = lengthened and record is not None and record.due_at <= lease_until
            if named and record is not None:
                record.held[hold] = lease_until
        if not named:
            self.cover(queue, [hold], lease_until, now)

    def change_token(self, queue: str, task_id: str, named_token: str, token: str) -> None:
        """Take note that a named task was taken with another token than it was named with."""
        with self._lock:
            held = self._records[queue].held if queue in self._records else {}
            if (until := held.pop((task_id, named_token), None)) is not None:
                held[task_id, token] = until

    def forget(self, queue: str, hold: Holding) -> None:
        """Take note that a task is held no more; the record itself is corrected at its next writing."""
        with self._lock:
            if queue in self._records:
                self._records[queue].held.pop(hold, None)

    def close(self) -> None:
        """Delete the records that name nothing held; the others stay for the sweep."""
        with self._lock:
            for record in self._records.values():
                if not record.held:
                    self._calls.delete(record.record_id)
            self._records.clear()

    def _usable_record(self, queue: str, now: float) -> _LeaseRecord:
        """Return the record to write to: a new one where the sweep is to act on the one so far."""
        record = self._records.get(queue)
        if record is None or any(until <= now for until in record.held.values()):
            live = (
                {} if record is None else {hold: until for hold, until in record.held.items() if until > now}
            )
            record = _LeaseRecord(f"{LEASE_PREFIX}{queue}#{uuid.uuid4().hex}", live)
            self._records[queue] = record
        return record

    def _item(self, queue: str, record: _LeaseRecord) -> Item:
        in_hand = {task_id for task_id, _token in record.held}
        ahead = sorted(record.named - in_hand)
        return {
            "taskId": {"S": record.record_id},
            "taskIds": {"SS": sorted(in_hand)},
            **({"aheadIds": {"SS": ahead}} if ahead else {}),
            "heldUntil": milliseconds(record.held_until),
            "dueShard": {"S": self._keyspace.due(queue, self._keyspace.shard_of(record.record_id))},
            "requestToken": {"S": uuid.uuid4().hex},
        } | due_attributes(record.due_at)


def is_lease_record(item: Item) -> bool:
    """Return whether an item is a lease record."""
    return "taskIds" in item


def task_ids_of(record: Item) -> list[str]:
    """Return the ids that a lease record names."""
    return [*record["taskIds"]["SS"], *ahead_ids(record)]


def ahead_ids(record: Item) -> list[str]:
    """Return those of the ids that were not to be claimed yet when the record was written."""
    return list(record["aheadIds"]["SS"]) if "aheadIds" in record else []


def due_attributes(due_at: float) -> Item:
    """Return the attributes of a lease record that is to be looked at then, in seconds."""
    return {"dueAt": milliseconds(due_at), "ttl": {"N": str(ceil(due_at) + RECORD_TTL_SECONDS)}}


def next_look(record: Item, ends: Collection[float], now: float) -> float | None:
    """Return when to look at a lease record again, in seconds; None if it can go.

    Args:
        record: The record, as it was written by its process.
        ends: When the leases of the tasks end that it names and that are held; all after `now`.
        now: Current time in seconds.
    """
    held_until = seconds(record["heldUntil"])
    moments = [*ends, held_until, held_until + LATE_CLAIM_SECONDS]
    return min((moment for moment in moments if moment > now), default=None)


def due_at(record: Item) -> float:
    """Return when a lease record is to be looked at, in seconds."""
    return seconds(record["dueAt"])
