"""Count tasks, approximately and by group, within bounds."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from itertools import chain, islice
from math import ceil
from typing import TYPE_CHECKING

from typing_extensions import override

from freshq.model.task import TaskStatus
from freshq.stores.base import Stats
from freshq.stores.dynamodb import queries
from freshq.stores.dynamodb.calls import translated
from freshq.stores.dynamodb.items import LEASE_PREFIX, decode_if_task
from freshq.stores.dynamodb.leases import ahead_ids, is_lease_record, task_ids_of
from freshq.stores.dynamodb.part import DynamoPart
from freshq.stores.dynamodb.queries import claimable_pages, due_query, ids_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from freshq.model.task import Task
    from freshq.stores.base import OldestRequest
    from freshq.stores.dynamodb.queries import LiveTasks
    from freshq.stores.dynamodb.schema import Item
    from freshq.stores.lines import Line

NOT_COUNTED = ("success", "failure", "cancelled", "shed_by_reason")
BYTES_A_READ_UNIT = 4096
# Maximum number of lines to count. If there are more, the counts are lower bounds.
MAX_LINES = 64
BOUNDS_OF_SOME_LINES = {
    "pending": "at least",
    "shed": "at least",
    "oldest_pending_seconds": "at least",
    "newest_pending_seconds": "at most",
}


class ApproximateCounts:
    """Counts a queue by at most one page of each partition and kind, of up to `MAX_LINES` lines."""

    def __init__(self, store: DynamoCounts, queue: str) -> None:
        self._calls = store.calls
        self._keyspace = store.keyspace
        self._index = store.status_index
        self._queue = queue
        self._bounded = dict.fromkeys(NOT_COUNTED, "not counted")
        # A task that was shed early, or before its queue's max age, is in no index.
        self._bounded |= {"shed": "at least", "taken": "at most"}

    def stats(self, lines: Iterable[Line], now: float, created_after: float) -> Stats:
        """Return the counts.

        Args:
            lines: Where tasks may wait.
            now: Current time in seconds.
            created_after: Tasks created at or before this time are stale.
        """
        counted_lines = [*islice(lines, MAX_LINES + 1)]
        if len(counted_lines) > MAX_LINES:
            self._bounded |= BOUNDS_OF_SOME_LINES
        partitions = self._keyspace.pending_partitions(self._queue, counted_lines[:MAX_LINES])
        index = self._index
        live = index.live(created_after, now)
        ends = [end for partition in partitions for end in self._ends(partition, live)]
        delayed, lease_ids = self._due()
        pending, past_deadline = self._totals(
            self._count(("pending", "shed"), live.query(name)) for name in partitions
        )
        # If time is not the order, the filter has already counted the tasks past the queue's max age.
        too_old, _ = self._totals(
            self._count(("shed",), index.query(name, "<=", created_after))
            for name in partitions
            if index.by_time
        )
        if self._calls.lacks_deadlines:
            self._bounded["pending"] = "at most"
        return Stats(
            pending=pending,
            delayed=delayed,
            taken=len(self._taken(lease_ids)),
            shed=past_deadline + too_old,
            oldest_pending_seconds=max(0.0, now - min(ends)) if ends else None,
            newest_pending_seconds=max(0.0, now - max(ends)) if ends else None,
            bounded=self._bounded,
        )

    def _ends(self, partition: str, live: LiveTasks) -> list[float]:
        """Return creation times, including those of the oldest and the newest claimable task.

        If time is not the order, these are the oldest and the newest at either end of the line.
        """
        created: list[float] = []
        for newest_first in (False, True):
            pages = claimable_pages(self._calls, partition, live, 1, newest_first=newest_first)
            page = next((page for page in pages if page.entries), None)
            if page is None:
                continue
            created += [entry.created for entry in page.entries]
            if not (live.index.by_time or page.is_last):
                self._bounded |= {
                    name: BOUNDS_OF_SOME_LINES[name]
                    for name in ("oldest_pending_seconds", "newest_pending_seconds")
                }
        return created

    @staticmethod
    def _totals(pages: Iterable[tuple[int, int]]) -> tuple[int, int]:
        """Return the number of tasks counted, and the number filtered out, over all pages."""
        counted, left_out = zip((0, 0), *pages, strict=True)
        return sum(counted), sum(left_out)

    def _count(self, fields: Collection[str], arguments: Item) -> tuple[int, int]:
        """Return how many tasks are on one page of a query, and how many its filter left out.

        Args:
            fields: The counts that are lower bounds if there are more pages.
            arguments: Arguments of the query.
        """
        page = self._calls.query(arguments | {"Select": "COUNT"})
        if "LastEvaluatedKey" in page:
            self._bounded |= dict.fromkeys(fields, "at least")
        return int(page["Count"]), int(page["ScannedCount"] - page["Count"])

    def _due(self) -> tuple[int, list[str]]:
        """Return the number of delayed tasks, and the ids of the lease records."""
        delayed = 0
        lease_ids: list[str] = []
        for partition in self._keyspace.due_partitions(self._queue):
            page = self._calls.query(due_query(partition))
            if "LastEvaluatedKey" in page:
                self._bounded["delayed"] = "at least"
            found = [item_id for item_id in ids_of(page) if item_id.startswith(LEASE_PREFIX)]
            delayed += len(page["Items"]) - len(found)
            lease_ids += found
        return delayed, lease_ids

    def _taken(self, lease_ids: list[str]) -> set[str]:
        """Return the ids in lease records, except those named ahead that are not TAKEN."""
        records: list[Item] = list(filter(is_lease_record, self._calls.get_many(lease_ids)))
        ahead = {task_id for record in records for task_id in ahead_ids(record)}
        in_hand = {task_id for record in records for task_id in task_ids_of(record)} - ahead
        tasks = map(decode_if_task, self._calls.get_many(sorted(ahead)))
        return in_hand | {task.task_id for task in tasks if task and task.status is TaskStatus.TAKEN}


class DynamoCounts(DynamoPart):
    """Counts and times of the claimable tasks of a queue, from the status index."""

    @override
    def count_waiting(
        self, queue: str, now: float, created_after: float, at_most: int
    ) -> dict[str | None, int]:
        """Count the claimable tasks by group, up to `at_most` of each partition."""
        live = self.status_index.live(created_after, now)
        counts: Counter[str | None] = Counter()
        for line in self.line_records.all_lines(queue, now):
            for partition in self.keyspace.pending_partitions(queue, [line]):
                counts[line[1]] += queries.count_live(self.calls, partition, live, at_most)
        return dict(counts)

    @override
    def newest_created(
        self, queue: str, now: float, created_after: float, at_most: int
    ) -> dict[str | None, list[float]]:
        """Return the creation times of claimable tasks by group: the `at_most` newest of each partition.

        If time is not the order, they are the times of the last tasks of each partition, newest first.
        """
        live = self.status_index.live(created_after, now)
        times: defaultdict[str | None, list[float]] = defaultdict(list)
        for line in self.line_records.all_lines(queue, now):
            for partition in self.keyspace.pending_partitions(queue, [line]):
                pages = queries.claimable_pages(self.calls, partition, live, at_most, newest_first=True)
                entries = chain.from_iterable(page.entries for page in pages)
                found = [entry.created for entry in islice(entries, at_most)]
                times[line[1]] += found if live.index.by_time else sorted(found, reverse=True)
        return dict(times)

    @override
    def oldest_created(self, queue: str, now: float, created_after: float) -> float | None:
        """Return the creation time of the oldest claimable task; None if there is none."""
        lines = self.line_records.all_lines(queue, now)
        return self.oldest_of(queue, self.status_index.live(created_after, now), lines)

    def oldest_of(self, queue: str, live: LiveTasks, lines: Iterable[Line]) -> float | None:
        """Return the creation time of the oldest live task of some lines; None if there is none."""
        oldest = (
            next(queries.oldest_claimable(self.calls, partition, live, 1), None)
            for partition in self.keyspace.pending_partitions(queue, lines)
        )
        return min((entry[0] for entry in oldest if entry is not None), default=None)

    @override
    def oldest_tasks(self, request: OldestRequest) -> list[Task]:
        """Return the oldest claimable tasks, the lowest priority level first."""
        levels: dict[int, list[Line]] = {}
        for line in self._asked_lines(request):
            levels.setdefault(line[0], []).append(line)
        live = self.status_index.live(request.created_after, request.now)
        ids: list[str] = []
        for level in sorted(levels):
            ids += self._oldest_ids(request.queue, levels[level], live, request.count - len(ids))
        tasks = map(decode_if_task, self.calls.get_many(ids))
        return [task for task in tasks if task and task.status is TaskStatus.PENDING and not task.delayed]

    def _asked_lines(self, request: OldestRequest) -> list[Line]:
        if request.level is not None and request.groups is not None:
            return [(request.level, group) for group in request.groups]
        lines = self.line_records.all_lines(request.queue, request.now)
        return [line for line in lines if request.asks(*line)]

    def _oldest_ids(self, queue: str, lines: Iterable[Line], live: LiveTasks, count: int) -> list[str]:
        partitions = [
            queries.oldest_claimable(self.calls, partition, live, count)
            for partition in self.keyspace.pending_partitions(queue, lines)
        ]
        return [task_id for _created, task_id in islice(heapq.merge(*partitions), count)]

    @override
    def exact_count_units(self) -> int:
        with translated(self.calls.table):
            size_bytes = self.calls.client.describe_table(TableName=self.calls.table)["Table"][
                "TableSizeBytes"
            ]
        return ceil(size_bytes / BYTES_A_READ_UNIT)

    @override
    def approximate_stats(self, queue: str, now: float, created_after: float) -> Stats:
        lines = self.line_records.all_lines(queue, now)
        return ApproximateCounts(self, queue).stats(lines, now, created_after)
