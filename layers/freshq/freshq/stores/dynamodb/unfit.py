"""Take tasks that no claim can take out of the way: shed the stale ones, discard the unreadable ones."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from freshq.errors import DamagedTask
from freshq.model.forks import new_lock
from freshq.model.lifecycle import new_token
from freshq.model.task import TaskStatus
from freshq.policy.shedding import ShedReason, too_late
from freshq.stores.base import Guard, TooLarge
from freshq.stores.dynamodb.batches import each_in_order
from freshq.stores.dynamodb.calls import ConditionFailed, InvalidUpdate
from freshq.stores.dynamodb.items import (
    INDEX_KEYS,
    condition,
    decode,
    decode_if_task,
    guarded,
    is_task,
    milliseconds,
    replace_arguments,
    update_arguments,
    with_new_version,
)
from freshq.stores.dynamodb.queries import LivePartition

if TYPE_CHECKING:
    from freshq.model.task import Task
    from freshq.stores.base import ExpiredTasks
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.items import Keyspace
    from freshq.stores.dynamodb.queries import Partitions
    from freshq.stores.dynamodb.schema import Item

logger = logging.getLogger(__name__)
# Tasks shed at a time, and by one portion of upkeep, so that due tasks need not wait long.
BATCH: Final = 25
MAX_SHED: Final = 200
# A status unknown to this version belongs to a newer one, which may still run the task.
WAITING_OR_HELD: Final = ({"S": TaskStatus.PENDING.value}, {"S": TaskStatus.TAKEN.value})
# The errors of a task whose item has no room for a new version. The second fits in the room of `pendingShard`
# and the spare room, unless a redrive has used that up.
NO_ROOM: Final = "no room left in the item"
TOO_LARGE: Final = "item too large"
# Attributes that a dead letter does not have, and attributes that it can do without.
ENDED: Final = ("leaseToken", "leaseUntil", "notBefore")
SPARE: Final = (
    *("result", "putToken", "endedToken", "progressFraction", "progressStep", "traceContext"),
    *("parentId", "rootId", "attemptRecord"),
)


class StaleItems:
    """Sheds tasks past their own deadline that claims tried or passed over. Thread-safe."""

    def __init__(self, partitions: Partitions, expired: ExpiredTasks) -> None:
        self._partitions = partitions
        self._calls = partitions.calls
        self._expired = expired
        self._keyspace = partitions.keyspace
        self._lock = new_lock()
        # By queue, the partitions in which claims skipped tasks: the queue's max age, and where the next
        # search continues.
        self._passed: dict[str, dict[str, tuple[float, Item | None]]] = {}

    def passed_over(self, queue: str, partition: str, max_age_seconds: float) -> None:
        """Note that a claim passed over stale tasks.

        Args:
            queue: Name of the queue.
            partition: Their partition of the status index.
            max_age_seconds: The queue's max age.
        """
        with self._lock:
            self._passed.setdefault(queue, {}).setdefault(partition, (max_age_seconds, None))

    def shed_passed_over(self, queue: str, now: float, limit: int) -> int:
        """Shed up to `limit`, and `MAX_SHED`, tasks that claims of this process passed over; return how many.

        Raises:
            StoreError: If the store did not answer.
        """
        left = min(limit, MAX_SHED)
        with self._lock:
            partitions = [*self._passed.get(queue, {}).items()]
        for partition, (max_age_seconds, start_after) in partitions:
            if left < BATCH:
                break
            live = LivePartition(partition, self._partitions, now - max_age_seconds, now)
            ids, more = live.stale_page(start_after)
            self._shed_in_batches(ids[:left], now)
            # Tasks that are left over are found again from the same key.
            next_start = more if len(ids) <= left else start_after
            with self._lock:
                if next_start is None and not ids:
                    del self._passed[queue][partition]
                else:
                    self._passed[queue][partition] = (max_age_seconds, next_start)
            left -= len(ids[:left])
        return min(limit, MAX_SHED) - left

    def _shed_in_batches(self, ids: list[str], now: float) -> None:
        entries = iter(ids)
        while batch := list(islice(entries, BATCH)):
            tasks = filter(None, map(decode_if_task, self._calls.get_many(batch)))
            each_in_order(list(tasks), lambda task: self.shed(task, now, reserve_seconds=0.0))

    def shed(self, task: Task, now: float, reserve_seconds: float) -> None:
        """Shed a PENDING task whose own deadline is too near, unless it changes in between.

        A task past its deadline only leaves its line: it is SHED to every reader, as in the other stores.

        Args:
            task: The task.
            now: Current time in seconds.
            reserve_seconds: Time that a task must have left.
        """
        reason = too_late(now, task.stale_at, reserve_seconds)
        if task.status is not TaskStatus.PENDING or reason is None:
            return
        guard = Guard(TaskStatus.PENDING, request_token=task.request_token)
        if reason is ShedReason.EXPIRED:
            out_of_line = dict.fromkeys(INDEX_KEYS)
            update = update_arguments(task.task_id, out_of_line, guarded(task.queue, guard), self._keyspace)
        else:
            shed = replace(task, status=TaskStatus.SHED, shed_reason=reason, updated=now)
            update = replace_arguments(shed, guard, self._keyspace)
        try:
            self._calls.update(update)
        except ConditionFailed:
            logger.debug("task %s changed before it could be shed", task.task_id)
        else:
            self._expired.note(task.queue, [task.stale_at] if reason is ShedReason.EXPIRED else [])


@dataclass(slots=True)
class UnreadableTasks:
    """Makes dead letters of tasks that cannot be read, or have no room left for freshq's attributes.

    Attributes:
        calls: Calls to the table.
        keyspace: Names of its index partitions.
        discarded: Number of tasks that became dead letters since the agenda last took this count.
    """

    calls: TableCalls
    keyspace: Keyspace
    discarded: int = 0

    def discard_if_damaged(self, item: Item, now: float) -> None:
        """Make a dead letter of a task if it cannot be read, unless it changes or its status is unknown.

        Args:
            item: The item of the task that was read.
            now: Current time in seconds.
        """
        damage = damage_of(item)
        if damage is None or item["taskStatus"] not in WAITING_OR_HELD:
            return
        unchanged = condition("#taskStatus = :status", status=item["taskStatus"])
        if "requestToken" in item:
            both = "#taskStatus = :status AND #requestToken = :token"
            unchanged = condition(both, status=item["taskStatus"], token=item["requestToken"])
        queue = item.get("taskQueue", {}).get("S")
        self._discard(item["taskId"]["S"], queue, now, str(damage), unchanged)

    def discard_if_large(self, task_id: str, queue: str, now: float) -> None:
        """Make a dead letter of a waiting task that has no room for a lease, unless it changes."""
        waits = guarded(queue, Guard(TaskStatus.PENDING))
        self._discard(task_id, queue, now, NO_ROOM, waits)

    def discard_if_invalid(self, task_id: str, now: float) -> bool:
        """Make a dead letter of a task if an attribute of another type prevented its change.

        Args:
            task_id: Id of the task.
            now: Current time in seconds.

        Returns:
            Whether the task was the reason; False if it can be read.
        """
        item = self.calls.get(task_id)
        if item is None or not is_task(item):
            return True
        if damage_of(item) is None:
            return False
        self.discard_if_damaged(item, now)
        return True

    def _discard(self, task_id: str, queue: str | None, now: float, error: str, unchanged: Item) -> None:
        try:
            self.discard_unreadable(task_id, queue, now, error, new_token(), unchanged)
        except ConditionFailed:
            logger.debug("task %s changed before it could become a dead letter", task_id)
        except TooLarge:
            logger.exception("task %s could not become a dead letter", task_id)
        else:
            self.discarded += 1
            logger.error("task %s is a dead letter now: %s", task_id, error)

    def discard_unreadable(
        self,
        task_id: str,
        queue: str | None,
        now: float,
        error: str,
        token: str,
        unchanged: Item,
    ) -> Item:
        """Make a dead letter of a task, whatever its size; return the item.

        Args:
            task_id: Id of the task.
            queue: Its queue; None if that cannot be read.
            now: Current time in seconds.
            error: Why it is a dead letter; shortened if there is no room.
            token: The request token of the change.
            unchanged: The condition of the change.

        Raises:
            ConditionFailed: If the condition did not hold.
        """
        changes: Item = dict.fromkeys((*ENDED, *INDEX_KEYS))
        at = milliseconds(now)
        changes |= {"taskStatus": {"S": TaskStatus.FAILURE.value}, "taskUpdated": at, "deadAt": at}
        changes |= {"requestToken": {"S": token}, "error": {"S": error}}
        if not self.keyspace.is_attached:
            changes["ttl"] = None  # a person must repair it, so it stays until it is purged
        if queue is not None:
            dead = self.keyspace.dead(queue, self.keyspace.shard_of(task_id))
            changes |= {"dueShard": {"S": dead}, "dueAt": at}
        spare: Item = dict.fromkeys(SPARE)
        short = spare | {"requestToken": {"S": token[:8]}, "error": {"S": TOO_LARGE}}
        for less in ({}, spare, short, short | {"error": None, "deadAt": None}):
            arguments = update_arguments(task_id, changes | less, unchanged, self.keyspace)
            with suppress(TooLarge):
                return self._updated(arguments)
        msg = f"task {task_id!r}: no room to make it a dead letter"
        raise TooLarge(msg)

    def _updated(self, arguments: Item) -> Item:
        try:
            return self.calls.update(arguments) or {}
        except InvalidUpdate:
            return self.calls.update(with_new_version(arguments)) or {}


def damage_of(item: Item) -> DamagedTask | None:
    """Return why a task cannot be read; None if it can."""
    try:
        decode(item)
    except DamagedTask as damage:
        return damage
    return None
