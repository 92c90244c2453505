"""Keep lease records, through which expired claims are found."""

from __future__ import annotations

import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, inf
from typing import TYPE_CHECKING, Final, TypeAlias

from freshq.model.fields import SUCCESSOR_MARK, plain_token
from freshq.model.forks import forget_in_child
from freshq.model.lifecycle import new_token
from freshq.model.task import TaskStatus
from freshq.stores.dynamodb.calls import ConditionFailed
from freshq.stores.dynamodb.items import LEASE_PREFIX, condition, milliseconds, seconds, seconds_or

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from freshq.model.task import Task
    from freshq.stores.base import Guard
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.items import Keyspace
    from freshq.stores.dynamodb.schema import Item

# The sweep deletes the record of a dead process; TTL is the last resort, a week later.
RECORD_TTL_SECONDS: Final = 7 * 86_400
# A process may stall between naming a task and taking it. DynamoDB rejects requests signed longer ago than
# this, so no task can still be taken under a record whose leases expired this long ago.
LATE_CLAIM_SECONDS: Final = 900.0
# Bytes of the ids that a record names: below the 400 KB of an item, with room for those named ahead.
MAX_NAMED_BYTES: Final = 300_000
# A task id and a lease token. The id is not enough: a process may claim a task again while it still tries to
# settle the earlier lease of the same task that it lost.
Holding: TypeAlias = tuple[str, str]


def is_lease_record(item: Item) -> bool:
    """Return whether an item is a lease record, perhaps a damaged one."""
    return str(item["taskId"]["S"]).startswith(LEASE_PREFIX)


def task_ids_of(record: Item) -> list[str]:
    """Return the ids that a lease record names."""
    return [*_ids_in(record, "taskIds"), *ahead_ids(record)]


def ahead_ids(record: Item) -> list[str]:
    """Return the ids of the tasks that were not about to be claimed when the record was written."""
    return _ids_in(record, "aheadIds")


def _ids_in(record: Item, name: str) -> list[str]:
    """Return the ids in an attribute of a lease record; none if it is missing or damaged."""
    return list(record.get(name, {}).get("SS", ()))


def due_attributes(due_at: float) -> Item:
    """Return the attributes of a lease record that is due then, in seconds."""
    return {"dueAt": milliseconds(due_at), "ttl": {"N": str(ceil(due_at) + RECORD_TTL_SECONDS)}}


def next_check(record: Item, lease_ends: Collection[float], now: float) -> float | None:
    """Return when a lease record is due again, in seconds; None if it can be deleted.

    Args:
        record: The record.
        lease_ends: When the leases of the named tasks that are held end; all after `now`.
        now: Current time in seconds.
    """
    held_until = seconds_or(record.get("heldUntil"), due_at(record))
    moments = [*lease_ends, held_until, held_until + LATE_CLAIM_SECONDS]
    return min((moment for moment in moments if moment > now), default=None)


def due_at(record: Item) -> float:
    """Return when a lease record is due, in seconds."""
    return seconds(record["dueAt"])


@dataclass(frozen=True, slots=True)
class _Naming:
    """Tasks to name before they are claimed, or before their leases change.

    Attributes:
        held: The tasks with their lease tokens, and when their leases will end.
        lease_until: When their leases will end, in seconds.
        now: Current time in seconds.
        ahead: Tasks that may be claimed next.
    """

    held: dict[Holding, float]
    lease_until: float
    now: float
    ahead: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Version:
    """A version of a lease record, as written to the table.

    Attributes:
        record_id: Id of the record.
        in_hand: The named tasks that are held, or about to be.
        ahead: The tasks it names that may be claimed next.
        due_at: When the sweep checks it, in seconds.
        held_until: No lease that it covers ends later.
        number: 1 for the first version. A copy that arrives late does not replace a later version.
    """

    record_id: str
    in_hand: frozenset[str]
    ahead: frozenset[str]
    due_at: float
    held_until: float
    number: int

    def covers(self, naming: _Naming) -> bool:
        """Return whether tasks may be claimed, or their leases changed, without another version.

        It must name them, and must not be due before they are taken. At `due_at`, before the lease ends, the
        sweep finds the task held and keeps the record while it is. If a claim is so slow, or the sweep's
        clock so far ahead, that the sweep looks before the claim, it finds nothing held and looks next at
        `held_until`: at the end of the lease, or up to one lease later.
        """
        in_time = naming.now < self.due_at <= naming.lease_until <= self.held_until
        return in_time and {task_id for task_id, _token in naming.held} - self.in_hand <= self.ahead


class LeaseRecord:
    """The lease record of this process for one queue. Thread-safe; makes no call.

    A task enters `_held` only once a version in the table names it, and every such version is due no later
    than the lease ends. So extending the lease of a held task needs no other version.

    Attributes:
        writing: Held while a version is written: versions must reach the table in order.
    """

    def __init__(self, queue: str) -> None:
        self.writing = threading.Lock()
        self._lock = threading.Lock()
        self._queue = queue
        # None until a first version is written.
        self._record_id: str | None = None
        self._held: dict[Holding, float] = {}
        # Tasks that earlier, full records name. The sweep checks those records until nothing is held.
        self._held_earlier: dict[Holding, float] = {}
        # Tasks that went back to their lines: a copy of the claim that arrives late may take them again. The
        # record that names them is left to the sweep once one of their leases would have ended.
        self._returned: dict[Holding, float] = {}
        # Whether a claim under the version in the table was sent more than once.
        self._is_left = False
        self._versions = 0
        # When the sweep checks the version in the table, at the earliest.
        self._due_at = inf
        # None unless the version in the table is known: not while one is written, nor after a failed write.
        self._version: _Version | None = None

    def begin(self, naming: _Naming) -> _Version | None:
        """Return the version to write; None if the version in the table covers the tasks.

        Until a new version is committed, none covers anything.
        """
        with self._lock:
            # No held lease ends before the version is due, so while it covers anything, none has expired.
            if self._version is not None and self._version.covers(naming):
                self._held |= naming.held
                return None
            first_end = min((*self._held.values(), *self._returned.values()), default=inf)
            if self._record_id is None or self._is_left or first_end <= naming.now:
                # The sweep acts on the record that names the expired leases, and the tasks that a late copy
                # of a claim may take: leave that record unchanged.
                self._record_id, self._version = self._new_id(), None
                self._held = _unexpired(self._held, naming.now)
                self._returned, self._is_left = {}, False
            names = [task_id for task_id, _token in (*self._held, *self._returned, *naming.held)]
            if len("".join(names).encode()) > MAX_NAMED_BYTES:
                self._record_id, self._version = self._new_id(), None
                self._held_earlier = _unexpired(self._held_earlier | self._held, naming.now)
                self._held, self._returned = {}, {}
            self._versions += 1
            version = self._next(naming, self._record_id)
            self._version = None
            self._due_at = min(self._due_at, version.due_at)
            return version

    def _next(self, naming: _Naming, record_id: str) -> _Version:
        """Return the version that names the tasks in hand and the new ones."""
        held = self._held | naming.held
        in_hand = frozenset([task_id for task_id, _token in held | self._returned])
        ahead = naming.ahead - in_hand
        lease_seconds = naming.lease_until - naming.now
        due_at, known = min(held.values()), self._version
        # Moving a record in its index costs two more write units than rewriting it in place. So it may be
        # checked too early, but never too late.
        if known is not None and naming.now + lease_seconds / 2 <= known.due_at <= due_at:
            due_at = known.due_at
        held_until = max((held | self._returned).values())
        if ahead:
            # The tasks ahead may be claimed until the record is due, for a lease as long as this one.
            held_until = max(held_until, due_at + lease_seconds)
        return _Version(record_id, in_hand, ahead, due_at, held_until, self._versions)

    def commit(self, version: _Version, naming: _Naming) -> None:
        """Note that a version was written, and of the holdings that it covers."""
        with self._lock:
            self._version = version
            self._due_at = version.due_at
            self._held |= naming.held

    def extend(self, holding: Holding, lease_until: float, now: float) -> bool:
        """Note a longer lease; return whether the sweep will find it without another version.

        The sweep will not if the task is not held, if its lease is shortened, or if the version in the table
        has been due: the sweep may have looked before a slow claim took the task.
        """
        with self._lock:
            held = self._held_earlier if holding in self._held_earlier else self._held
            if held.get(holding, inf) > lease_until or self._due_at <= now:
                return False
            held[holding] = lease_until
            return True

    def leave(self) -> None:
        """Leave the version in the table to the sweep: a claim was sent twice, and a copy may arrive late."""
        with self._lock:
            self._is_left = True

    def forget(self, holding: Holding, *, returned: bool = False) -> None:
        """Note that a task is no longer held; the next version leaves it out.

        Args:
            holding: The task.
            returned: Whether it went back to its line. Then the record names it until the sweep deletes that.
        """
        with self._lock:
            self._held_earlier.pop(holding, None)
            until = self._held.pop(holding, None)
            if returned and until is not None:
                self._returned[holding] = until

    def deletable(self) -> str | None:
        """Return the record id; None if a task is held or may be taken again, or nothing was written."""
        with self._lock:
            return None if self._held or self._returned or self._is_left else self._record_id

    def _new_id(self) -> str:
        return f"{LEASE_PREFIX}{self._queue}#{uuid.uuid4().hex}"


class LeaseRecords:
    """The lease records of this process for one table. Thread-safe.

    A forked child begins its own: versions of two processes would replace each other, and with them the names
    of held tasks.
    """

    def __init__(self, calls: TableCalls, keyspace: Keyspace) -> None:
        self._calls = calls
        self._keyspace = keyspace
        self.forget_parent()
        forget_in_child(self)

    def forget_parent(self) -> None:
        """Begin without records. A forked child leaves its parent's records to the parent."""
        self._lock = threading.Lock()
        self._records: dict[str, LeaseRecord] = {}

    def cover(
        self,
        queue: str,
        holdings: Sequence[Holding],
        lease_until: float,
        now: float,
        ahead: Iterable[str] = (),
    ) -> None:
        """Name tasks in the lease record before they are claimed, or before their lease is shortened.

        Args:
            queue: Name of the queue.
            holdings: The tasks, each with its lease token.
            lease_until: When their leases will end, in seconds.
            now: Current time in seconds.
            ahead: Tasks that may be claimed next; also named if the record is written.
        """
        naming = _Naming(dict.fromkeys(holdings, lease_until), lease_until, now, frozenset(ahead))
        record = self.of(queue)
        # While another thread writes a version, none covers anything.
        with record.writing:
            if (version := record.begin(naming)) is None:
                return
            number = {"N": str(version.number)}
            earlier = condition("attribute_not_exists(#number) OR #number < :number", number=number)
            try:
                self._calls.put(self._item(queue, version), earlier)
            except ConditionFailed as failed:
                # A lost reply: the sweep has moved this version since, so another request token is there.
                if failed.item is None or failed.item.get("number") != number:
                    raise
            record.commit(version, naming)

    @contextmanager
    def following(self, task: Task, guard: Guard) -> Iterator[None]:
        """Keep the lease record correct while the block stores a new version of a task.

        The task is named before it is held, and forgotten when it is no longer held.

        Args:
            task: The new version.
            guard: The condition of the write.

        Raises:
            ConditionFailed: If the block raises it.
        """
        token = task.lease_token if guard.lease_token is None else guard.lease_token
        if token is not None and SUCCESSOR_MARK in token:
            token = plain_token(token)
        if token is None:
            yield
            return
        holding = (task.task_id, token)
        record = self.of(task.queue)
        if task.lease_until is not None and not record.extend(holding, task.lease_until, task.updated):
            self.cover(task.queue, [holding], task.lease_until, task.updated)
        try:
            yield
        except ConditionFailed as failed:
            if not _is_held(failed.item, token):
                record.forget(holding)
            raise
        if task.lease_until is None:
            record.forget(holding, returned=task.status is TaskStatus.PENDING)

    def close(self) -> None:
        """Delete the records that name no held task; the sweep handles the rest."""
        with self._lock:
            records, self._records = self._records, {}
        for record in records.values():
            if (record_id := record.deletable()) is not None:
                self._calls.delete(record_id)

    def of(self, queue: str) -> LeaseRecord:
        """Return the lease record of a queue."""
        with self._lock:
            if (record := self._records.get(queue)) is None:
                record = self._records[queue] = LeaseRecord(queue)
            return record

    def _item(self, queue: str, version: _Version) -> Item:
        return {
            "taskId": {"S": version.record_id},
            "taskIds": {"SS": sorted(version.in_hand)},
            **({"aheadIds": {"SS": sorted(version.ahead)}} if version.ahead else {}),
            "heldUntil": milliseconds(version.held_until),
            "dueShard": {"S": self._keyspace.due(queue, self._keyspace.shard_of(version.record_id))},
            "requestToken": {"S": new_token()},
            "number": {"N": str(version.number)},
        } | due_attributes(version.due_at)


def _is_held(item: Item | None, token: str) -> bool:
    """Return whether an item is held under a token; with a successor it has another one."""
    return item is not None and plain_token(item.get("leaseToken", {}).get("S")) == token


def _unexpired(held: dict[Holding, float], now: float) -> dict[Holding, float]:
    return {holding: until for holding, until in held.items() if until > now}
