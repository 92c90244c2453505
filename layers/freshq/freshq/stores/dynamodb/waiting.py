"""What waits in the lines of a queue: counts and the oldest tasks, for the bound on its backlog."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from freshq.model.task import TaskStatus
from freshq.stores.dynamodb import queries
from freshq.stores.dynamodb.items import decode_if_task

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from freshq.model.task import Task
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.items import Keyspace
    from freshq.stores.dynamodb.line_records import LineRecords
    from freshq.stores.lines import Line


@dataclass(frozen=True, slots=True)
class WaitingTasks:
    """Reads the claimable tasks of a queue in the status index.

    Attributes:
        calls: Calls to the table.
        keyspace: Names of its index partitions.
        lines: The lines of its queues.
        resume_at: Where claims ran out of pages, with nothing but stale tasks up to there.
    """

    calls: TableCalls
    keyspace: Keyspace
    lines: LineRecords
    resume_at: queries.ResumeAt = field(default_factory=dict)

    def count(self, queue: str, created_after: float, at_most: int) -> dict[str | None, int]:
        """Count the claimable tasks by group, reading at most `at_most` keys of each partition."""
        counts: Counter[str | None] = Counter()
        for line in self.lines.all_lines(queue, created_after):
            for partition in self.keyspace.pending_partitions(queue, [line]):
                counts[line[1]] += queries.count_live(self.calls, partition, created_after, at_most)
        return dict(counts)

    def live(self, created_after: float, deadline_after: float) -> queries.LiveTasks:
        """Return which tasks are live, by their deadlines too if the index has them."""
        return queries.LiveTasks(created_after, deadline_after if self.keyspace.has_deadlines else None)

    def oldest_created(self, queue: str, created_after: float) -> float | None:
        """Return the creation time of the oldest task within the queue's max age; None if there is none."""
        lines = self.lines.all_lines(queue, created_after)
        return self.oldest(queue, queries.LiveTasks(created_after), lines)

    def oldest(self, queue: str, live: queries.LiveTasks, lines: Iterable[Line]) -> float | None:
        """Return the creation time of the oldest live task of some lines; None if there is none."""
        oldest = (
            next(queries.oldest_claimable(self.calls, partition, live, 1), None)
            for partition in self.keyspace.pending_partitions(queue, lines)
        )
        return min((entry[0] for entry in oldest if entry is not None), default=None)

    def oldest_tasks(
        self, queue: str, created_after: float, count: int, groups: Collection[str | None] | None
    ) -> list[Task]:
        """Return the oldest claimable tasks, those of the lowest priority level first.

        Args:
            queue: Name of the queue.
            created_after: Tasks created at or before this time are stale.
            count: Maximum number of tasks.
            groups: Only of these groups; None for all.
        """
        levels: dict[int, list[Line]] = {}
        for level, group in self.lines.all_lines(queue, created_after):
            if groups is None or group in groups:
                levels.setdefault(level, []).append((level, group))
        ids: list[str] = []
        for level in sorted(levels):
            ids += self._oldest_ids(queue, levels[level], created_after, count - len(ids))
        tasks = map(decode_if_task, self.calls.get_many(ids))
        return [task for task in tasks if task and task.status is TaskStatus.PENDING and not task.delayed]

    def _oldest_ids(self, queue: str, lines: Iterable[Line], created_after: float, count: int) -> list[str]:
        live = queries.LiveTasks(created_after)
        partitions = [
            queries.oldest_claimable(self.calls, partition, live, count)
            for partition in self.keyspace.pending_partitions(queue, lines)
        ]
        return [task_id for _created, task_id in islice(heapq.merge(*partitions), count)]
