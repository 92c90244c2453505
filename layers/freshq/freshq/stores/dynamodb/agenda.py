"""Find what is due: expired leases, delays that have passed, stale tasks."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING, Final

from freshq.model.lifecycle import new_token
from freshq.model.new_task import MAX_EPOCH_SECONDS
from freshq.model.task import TaskStatus
from freshq.policy.shedding import too_late
from freshq.stores.base import Due, Guard
from freshq.stores.dynamodb.calls import ConditionFailed
from freshq.stores.dynamodb.items import decode_if_task, is_task, replace_arguments
from freshq.stores.dynamodb.keyspace import LiveTasks, seconds_or
from freshq.stores.dynamodb.leases import due_at, due_attributes, is_lease_record, next_check, task_ids_of
from freshq.stores.dynamodb.put import each_in_order
from freshq.stores.dynamodb.queries import DUE_PAGE_KEYS, due_ids, earliest_due, stale_page

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from freshq.model.task import Task
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.dead_letters import Quarantine
    from freshq.stores.dynamodb.keyspace import Item, Keyspace

logger = logging.getLogger(__name__)
# Tasks shed at a time, and by one portion of upkeep, which should not keep what is due waiting.
BATCH: Final = 25
MAX_SHED: Final = 200


@dataclass(frozen=True, slots=True)
class DueTasks:
    """Reads the due index.

    Attributes:
        calls: Calls to the table.
        keyspace: Names of its index partitions.
        quarantine: Where damaged tasks go.
    """

    calls: TableCalls
    keyspace: Keyspace
    quarantine: Quarantine

    def find(self, queue: str, now: float, limit: int) -> Due:
        """Return up to `limit` due tasks; tidy the lease records on the way.

        It reads about `limit` entries of the index, and at least a page of each shard.
        """
        due: list[Task] = []
        pages_left = ceil(limit / DUE_PAGE_KEYS)
        cut_short = False
        for partition in self.keyspace.due_partitions(queue):
            for ids in due_ids(self.calls, partition, now):
                due += self._due_among(ids, now, limit - len(due))
                pages_left -= 1
                if len(due) >= limit:
                    return Due(due, more=True)
                if pages_left <= 0:
                    cut_short |= len(ids) == DUE_PAGE_KEYS
                    break
        # A lease record is tidied once nothing that it names is due.
        return Due(due, more=cut_short or bool(due))

    def delayed(self, queue: str, limit: int) -> list[Task]:
        """Return delayed tasks on the first page of each shard, the next due first."""
        tasks = map(decode_if_task, self.calls.get_many(self._coming_ids(queue)))
        delayed = [task for task in tasks if task is not None and task.delayed]
        return sorted(delayed, key=lambda task: task.not_before or 0.0)[:limit]

    def leased(self, queue: str, limit: int) -> list[Task]:
        """Return TAKEN tasks of the lease records on the first page of each shard, the first to end first."""
        records = filter(is_lease_record, self.calls.get_many(self._coming_ids(queue)))
        named = {task_id for record in records for task_id in task_ids_of(record)}
        tasks = map(decode_if_task, self.calls.get_many(sorted(named)))
        held = [task for task in tasks if task is not None and task.status is TaskStatus.TAKEN]
        return sorted(held, key=lambda task: task.lease_until or 0.0)[:limit]

    def _coming_ids(self, queue: str) -> list[str]:
        return [
            item_id
            for partition in self.keyspace.due_partitions(queue)
            for item_id, _due_at in earliest_due(self.calls, partition, MAX_EPOCH_SECONDS)
        ]

    def _due_among(self, ids: Sequence[str], now: float, limit: int) -> list[Task]:
        items = self.calls.get_many(ids)
        tasks = self._tasks(items, now)
        due = [task for task in tasks if task.delayed and (task.not_before or 0.0) <= now]
        for record in filter(is_lease_record, items):
            if len(due) < limit and due_at(record) <= now:
                due += self._expired(record, now)
        return due[:limit]

    def _expired(self, record: Item, now: float) -> list[Task]:
        """Return the tasks of a lease record with expired leases; if there is none, tidy the record."""
        held = [
            (task, task.lease_until)
            for task in self._tasks(self.calls.get_many(task_ids_of(record)), now)
            if task.status is TaskStatus.TAKEN and task.lease_until
        ]
        expired = [task for task, until in held if until <= now]
        if not expired:
            self._tidy(record, next_check(record, [until for _, until in held], now))
        return expired

    def _tasks(self, items: Iterable[Item], now: float) -> list[Task]:
        """Return the tasks that can be read; quarantine the others, unless their lease runs."""
        tasks = []
        for item in filter(is_task, items):
            if (task := decode_if_task(item)) is not None:
                tasks.append(task)
            elif seconds_or(item.get("leaseUntil"), now) <= now:
                self.quarantine.admit(item, now)
        return tasks

    def _tidy(self, record: Item, next_due_at: float | None) -> None:
        """Move a lease record to the next time to look at it, or delete it if there is none.

        If its process has rewritten it since it was read, it stays as it is.
        """
        unchanged: Item = {"ConditionExpression": "attribute_not_exists(#requestToken)"}
        if (seen := record.get("requestToken")) is not None:
            unchanged = {
                "ConditionExpression": "#requestToken = :seen",
                "ExpressionAttributeValues": {":seen": seen},
            }
        try:
            if next_due_at is None:
                self.calls.delete(record["taskId"]["S"], unchanged)
            else:
                moved = record | {"requestToken": {"S": new_token()}} | due_attributes(next_due_at)
                self.calls.put(moved, unchanged)
        except ConditionFailed:
            logger.debug("lease record %s was rewritten by its process", record["taskId"]["S"])


class StaleTasks:
    """Sheds tasks past their own deadline: one that a claim tried, or those it passed over. Thread-safe."""

    def __init__(self, calls: TableCalls, keyspace: Keyspace) -> None:
        self._calls = calls
        self._keyspace = keyspace
        self._lock = threading.Lock()
        # By queue, the partitions in which claims passed over tasks: the queue's max age, and where the
        # next look goes on.
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
            live = LiveTasks(self._keyspace.status_index, now - max_age_seconds)
            ids, more = stale_page(self._calls, partition, live, now, start_after)
            self._shed_in_batches(ids[:left], now)
            # Tasks that are left over here are found again from the same key.
            self._go_on(queue, partition, max_age_seconds, more if len(ids) <= left else start_after, ids)
            left -= len(ids[:left])
        return min(limit, MAX_SHED) - left

    def _go_on(
        self, queue: str, partition: str, max_age_seconds: float, start_after: Item | None, ids: list[str]
    ) -> None:
        """Note where to continue in a partition; forget it if there is nothing more."""
        with self._lock:
            if start_after is None and not ids:
                del self._passed[queue][partition]
            else:
                self._passed[queue][partition] = (max_age_seconds, start_after)

    def _shed_in_batches(self, ids: list[str], now: float) -> None:
        entries = iter(ids)
        while batch := list(islice(entries, BATCH)):
            tasks = filter(None, map(decode_if_task, self._calls.get_many(batch)))
            each_in_order(list(tasks), lambda task: self.shed(task, now, reserve_seconds=0.0))

    def shed(self, task: Task, now: float, reserve_seconds: float) -> None:
        """Shed a PENDING task whose own deadline is too near, unless it changes meanwhile.

        Args:
            task: The task.
            now: Current time in seconds.
            reserve_seconds: Time that a task must have left.
        """
        reason = too_late(now, task.deadline, reserve_seconds)
        if task.status is not TaskStatus.PENDING or reason is None:
            return
        shed = replace(task, status=TaskStatus.SHED, shed_reason=reason, updated=now)
        try:
            guard = Guard(TaskStatus.PENDING, request_token=task.request_token)
            self._calls.update(replace_arguments(shed, guard, self._keyspace))
        except ConditionFailed:
            logger.debug("task %s changed before it could be shed", task.task_id)
