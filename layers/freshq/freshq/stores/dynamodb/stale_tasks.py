"""Sheds tasks that are past their own max age but still in the status index.

Those that are stale by the queue's max age are excluded by the key condition of every query. TTL deletes
them, without a write.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from freshq.model.task import TaskStatus
from freshq.policy.shedding import too_late
from freshq.stores.base import Guard
from freshq.stores.dynamodb.calls import ConditionFailed
from freshq.stores.dynamodb.items import decode_if_task, replace_arguments
from freshq.stores.dynamodb.puts import each_in_order
from freshq.stores.dynamodb.queries import stale_page
from freshq.stores.dynamodb.status_index import LiveTasks

if TYPE_CHECKING:
    from freshq.model.task import Task
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.keyspace import Keyspace
    from freshq.stores.dynamodb.names import Item

logger = logging.getLogger(__name__)

# Tasks shed at a time, and by one portion of upkeep, which should not keep what is due waiting.
BATCH: Final = 25
MAX_SHED: Final = 200


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
