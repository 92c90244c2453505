"""Counts of the memory store: how many tasks of a queue are in each state, without visiting them."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from sortedcontainers import SortedList

from freshq.model.task import TaskStatus
from freshq.stores.base import Stats
from freshq.stores.memory_lines import LAST_ID

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq.model.task import Task

# Deadline, task id, creation time, group.
_Entry: TypeAlias = tuple[float, str, float, str | None]

# Tasks looked at for the oldest and the newest one, and for the groups beyond those that are wanted.
LOOKED_TASKS: Final = 1_000


class StateCounts:
    """The tasks of one queue by state, kept up to date with every change."""

    def __init__(self) -> None:
        self._statuses: Counter[TaskStatus] = Counter()
        self._in_line: SortedList = SortedList()
        # Creation times of the same tasks.
        self._in_line_since: SortedList = SortedList()
        self._delayed: SortedList = SortedList()

    def add(self, task: Task) -> None:
        """Count a task."""
        self._statuses[task.status] += 1
        if task.status is TaskStatus.PENDING:
            (self._delayed if task.delayed else self._in_line).add(_entry(task))
            if not task.delayed:
                self._in_line_since.add(task.created)

    def remove(self, task: Task) -> None:
        """Count a task no longer."""
        self._statuses[task.status] -= 1
        if task.status is TaskStatus.PENDING:
            (self._delayed if task.delayed else self._in_line).remove(_entry(task))
            if not task.delayed:
                self._in_line_since.remove(task.created)

    def by_group(self, now: float, created_after: float, at_most: int) -> dict[str | None, int]:
        """Count the claimable tasks by group, of the `at_most` and a few with the latest deadlines."""
        return {
            group: len(times) for group, times in self.newest_by_group(now, created_after, at_most).items()
        }

    def newest_by_group(
        self, now: float, created_after: float, at_most: int
    ) -> dict[str | None, list[float]]:
        """Return the creation times of the claimable tasks by group, of those that `by_group` counts."""
        times: defaultdict[str | None, list[float]] = defaultdict(list)
        for _deadline, _id, created, group in islice(self._live(now, reverse=True), at_most + LOOKED_TASKS):
            if created > created_after:
                times[group].append(created)
        return dict(times)

    def oldest_created(self, now: float, created_after: float) -> float | None:
        """Return when the oldest of the first tasks to become stale was created; None if there is none."""
        return min(self._created(now, created_after, reverse=False), default=None)

    def stats(self, now: float, created_after: float) -> Stats:
        """Return the counts; those of the oldest and newest task are bounds if there are many.

        Pending are those before their deadline, or those younger than the queue's max age, if they are fewer.
        """
        young = len(self._in_line_since) - self._in_line_since.bisect_right(created_after)
        pending = min(self._live_count(self._in_line, now), young)
        delayed = self._live_count(self._delayed, now)
        counts = self._statuses
        oldest = self.oldest_created(now, created_after)
        newest = max(self._created(now, created_after, reverse=True), default=None)
        bounded = {"shed_by_reason": "not counted"}
        if pending > LOOKED_TASKS:
            bounded |= {"oldest_pending_seconds": "at least", "newest_pending_seconds": "at most"}
        return Stats(
            pending=pending,
            delayed=delayed,
            taken=counts[TaskStatus.TAKEN],
            success=counts[TaskStatus.SUCCESS],
            failure=counts[TaskStatus.FAILURE],
            cancelled=counts[TaskStatus.CANCELLED],
            shed=counts[TaskStatus.SHED] + counts[TaskStatus.PENDING] - pending - delayed,
            oldest_pending_seconds=None if oldest is None else max(0.0, now - oldest),
            newest_pending_seconds=None if newest is None else max(0.0, now - newest),
            bounded=bounded,
        )

    def _created(self, now: float, created_after: float, *, reverse: bool) -> Iterator[float]:
        some = islice(self._live(now, reverse=reverse), LOOKED_TASKS)
        return (created for _deadline, _id, created, _group in some if created > created_after)

    def _live(self, now: float, *, reverse: bool) -> Iterator[_Entry]:
        """Yield the claimable tasks, the first to become stale first, or last."""
        live: Iterator[_Entry] = self._in_line.irange(minimum=(now, LAST_ID), reverse=reverse)
        return live

    @staticmethod
    def _live_count(tasks: SortedList, now: float) -> int:
        stale: int = tasks.bisect_right((now, LAST_ID))
        return len(tasks) - stale


def _entry(task: Task) -> _Entry:
    return task.deadline, task.task_id, task.created, task.group
