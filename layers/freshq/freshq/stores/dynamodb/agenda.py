"""Find due tasks: expired leases, delays that have passed, stale tasks."""

from __future__ import annotations

import logging
from math import ceil
from typing import TYPE_CHECKING

from typing_extensions import override

from freshq.model.lifecycle import new_token
from freshq.model.new_task import MAX_EPOCH_SECONDS
from freshq.model.task import TaskStatus
from freshq.stores.base import Due
from freshq.stores.dynamodb.calls import ConditionFailed
from freshq.stores.dynamodb.items import condition, decode_if_task, is_task, seconds_or
from freshq.stores.dynamodb.leases import due_at, due_attributes, is_lease_record, next_check, task_ids_of
from freshq.stores.dynamodb.part import DynamoPart
from freshq.stores.dynamodb.queries import DUE_PAGE_KEYS, due_after, due_ids, earliest_due

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from freshq.model.task import Task
    from freshq.stores.dynamodb.schema import Item

logger = logging.getLogger(__name__)


class DynamoAgenda(DynamoPart):
    """The tasks of a queue that fall due: delayed, leased or stale."""

    @override
    def due(self, queue: str, now: float, limit: int) -> Due:
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

    @override
    def delayed(self, queue: str, limit: int) -> list[Task]:
        """Return delayed tasks on the first page of each shard, the next due first."""
        tasks = map(decode_if_task, self.calls.get_many(self._coming_ids(queue)))
        delayed = [task for task in tasks if task is not None and task.delayed]
        return sorted(delayed, key=lambda task: task.not_before or 0.0)[:limit]

    @override
    def leased(self, queue: str, limit: int) -> list[Task]:
        """Return TAKEN tasks named on the first page of each shard, the earliest to expire first."""
        records = filter(is_lease_record, self.calls.get_many(self._coming_ids(queue)))
        named = {task_id for record in records for task_id in task_ids_of(record)}
        tasks = map(decode_if_task, self.calls.get_many(sorted(named)))
        held = [task for task in tasks if task is not None and task.status is TaskStatus.TAKEN]
        return sorted(held, key=lambda task: task.lease_until or 0.0)[:limit]

    @override
    def next_due(self, queue: str, now: float) -> float | None:
        partitions = self.keyspace.due_partitions(queue)
        return min((due for each in partitions for due in due_after(self.calls, each, now)), default=None)

    def _coming_ids(self, queue: str) -> list[str]:
        return [
            item_id
            for partition in self.keyspace.due_partitions(queue)
            for item_id, _due_at in earliest_due(self.calls, partition, MAX_EPOCH_SECONDS)
        ]

    def _due_among(self, ids: Sequence[str], now: float, limit: int) -> list[Task]:
        items = self.calls.get_many(ids)
        tasks = self._readable(items, now)
        due = [task for task in tasks if task.delayed and (task.not_before or 0.0) <= now]
        for record in filter(is_lease_record, items):
            if len(due) < limit and due_at(record) <= now:
                due += self._expired_leases(record, now)
        return due[:limit]

    def _expired_leases(self, record: Item, now: float) -> list[Task]:
        """Return the tasks of a lease record with expired leases; if there is none, tidy the record."""
        held = [
            (task, task.lease_until)
            for task in self._readable(self.calls.get_many(task_ids_of(record)), now)
            if task.status is TaskStatus.TAKEN and task.lease_until
        ]
        expired = [task for task, until in held if until <= now]
        if not expired:
            self._tidy_lease_record(record, next_check(record, [until for _, until in held], now))
        return expired

    def _readable(self, items: Iterable[Item], now: float) -> list[Task]:
        """Return the readable tasks; quarantine the unreadable ones unless their lease is running."""
        tasks = []
        for item in filter(is_task, items):
            if (task := decode_if_task(item)) is not None:
                tasks.append(task)
            elif seconds_or(item.get("leaseUntil"), now) <= now:
                self.quarantine.admit(item, now)
        return tasks

    def _tidy_lease_record(self, record: Item, next_due_at: float | None) -> None:
        """Move a lease record to the next time to look at it, or delete it if there is none.

        If its process has rewritten it since it was read, it stays as it is.
        """
        unchanged = condition("attribute_not_exists(#requestToken)")
        if (seen := record.get("requestToken")) is not None:
            unchanged = condition("#requestToken = :seen", seen=seen)
        try:
            if next_due_at is None:
                self.calls.delete(record["taskId"]["S"], unchanged)
            else:
                moved = record | {"requestToken": {"S": new_token()}} | due_attributes(next_due_at)
                self.calls.put(moved, unchanged)
        except ConditionFailed:
            logger.debug("lease record %s was rewritten by its process", record["taskId"]["S"])

    @override
    def tidy(self, queue: str, now: float, limit: int) -> int:
        done = self.line_records.tidy(queue, now, limit)
        return done + self.stale_items.shed_passed_over(queue, now, limit - done)

    @override
    def tidy_in_claim(self, queue: str, now: float, limit: int) -> int:
        return self.line_records.tidy_in_claim(queue, now)

    @override
    def take_quarantined(self) -> int:
        admitted, self.quarantine.admitted = self.quarantine.admitted, 0
        return admitted
