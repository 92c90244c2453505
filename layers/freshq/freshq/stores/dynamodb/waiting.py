"""Counts and the oldest tasks of a queue's lines, for the bound on its backlog."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING

from freshq.model.task import TaskStatus
from freshq.stores.dynamodb import queries
from freshq.stores.dynamodb.items import decode_if_task

if TYPE_CHECKING:
    from collections.abc import Iterable

    from freshq.model.task import Task
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.keyspace import Keyspace
    from freshq.stores.dynamodb.line_records import LineRecords
    from freshq.stores.dynamodb.status_index import LiveTasks
    from freshq.stores.lines import Line
    from freshq.stores.oldest_request import OldestRequest


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

    def count(self, queue: str, now: float, created_after: float, at_most: int) -> dict[str | None, int]:
        """Count the claimable tasks by group, up to `at_most` of each partition."""
        live = self.live(created_after, now)
        counts: Counter[str | None] = Counter()
        for line in self.lines.all_lines(queue, now):
            for partition in self.keyspace.pending_partitions(queue, [line]):
                counts[line[1]] += queries.count_live(self.calls, partition, live, at_most)
        return dict(counts)

    def newest(
        self, queue: str, now: float, created_after: float, at_most: int
    ) -> dict[str | None, list[float]]:
        """Return the creation times of claimable tasks by group, of each partition the `at_most` newest.

        Where time is not the order, the last ones of each partition, newest first.
        """
        live = self.live(created_after, now)
        times: defaultdict[str | None, list[float]] = defaultdict(list)
        for line in self.lines.all_lines(queue, now):
            for partition in self.keyspace.pending_partitions(queue, [line]):
                pages = queries.claimable_pages(self.calls, partition, live, at_most, newest_first=True)
                entries = chain.from_iterable(page.entries for page in pages)
                found = [entry.created for entry in islice(entries, at_most)]
                times[line[1]] += found if live.index.by_time else sorted(found, reverse=True)
        return dict(times)

    def live(self, created_after: float, deadline_after: float) -> LiveTasks:
        """Return which tasks are live, by their deadlines too if the index has them."""
        return self.keyspace.status_index.live(created_after, deadline_after)

    def oldest_created(self, queue: str, now: float, created_after: float) -> float | None:
        """Return the creation time of the oldest claimable task; None if there is none."""
        lines = self.lines.all_lines(queue, now)
        return self.oldest(queue, self.live(created_after, now), lines)

    def oldest(self, queue: str, live: LiveTasks, lines: Iterable[Line]) -> float | None:
        """Return the creation time of the oldest live task of some lines; None if there is none."""
        oldest = (
            next(queries.oldest_claimable(self.calls, partition, live, 1), None)
            for partition in self.keyspace.pending_partitions(queue, lines)
        )
        return min((entry[0] for entry in oldest if entry is not None), default=None)

    def oldest_tasks(self, request: OldestRequest) -> list[Task]:
        """Return the oldest claimable tasks, those of the lowest priority level first."""
        levels: dict[int, list[Line]] = {}
        for line in self._asked_lines(request):
            levels.setdefault(line[0], []).append(line)
        live = self.live(request.created_after, request.now)
        ids: list[str] = []
        for level in sorted(levels):
            ids += self._oldest_ids(request.queue, levels[level], live, request.count - len(ids))
        tasks = map(decode_if_task, self.calls.get_many(ids))
        return [task for task in tasks if task and task.status is TaskStatus.PENDING and not task.delayed]

    def _asked_lines(self, request: OldestRequest) -> list[Line]:
        if request.level is not None and request.groups is not None:
            return [(request.level, group) for group in request.groups]
        lines = self.lines.all_lines(request.queue, request.now)
        return [line for line in lines if request.asks(*line)]

    def _oldest_ids(self, queue: str, lines: Iterable[Line], live: LiveTasks, count: int) -> list[str]:
        partitions = [
            queries.oldest_claimable(self.calls, partition, live, count)
            for partition in self.keyspace.pending_partitions(queue, lines)
        ]
        return [task_id for _created, task_id in islice(heapq.merge(*partitions), count)]
