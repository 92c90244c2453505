"""Exact counts, from reading every task."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from freshq.model.task import TaskStatus
from freshq.stores.base import Stats

if TYPE_CHECKING:
    from collections.abc import Iterable

    from freshq.model.task import Task
    from freshq.policy.reserve import ReserveSpans


def tally(tasks: Iterable[Task], now: float, spans: ReserveSpans) -> Stats:
    """Count tasks by state; their sum is the number of tasks.

    Args:
        tasks: Every task of a queue.
        now: The time to count at, in seconds.
        spans: When claims passed tasks over because of the reserve.
    """
    reasons: Counter[str] = Counter()
    counts: Counter[TaskStatus] = Counter()
    delayed = 0
    oldest: float | None = None
    newest: float | None = None
    for task in tasks:
        status = task.status_at(now)
        counts[status] += 1
        if status is TaskStatus.SHED:
            reasons[(task.shed_reason or spans.reason(task.deadline)).value] += 1
        if status is not TaskStatus.PENDING:
            continue
        if task.delayed:
            delayed += 1
            continue
        oldest = task.created if oldest is None else min(oldest, task.created)
        newest = task.created if newest is None else max(newest, task.created)
    return Stats(
        pending=counts[TaskStatus.PENDING] - delayed,
        delayed=delayed,
        taken=counts[TaskStatus.TAKEN],
        success=counts[TaskStatus.SUCCESS],
        failure=counts[TaskStatus.FAILURE],
        cancelled=counts[TaskStatus.CANCELLED],
        shed=counts[TaskStatus.SHED],
        shed_by_reason=dict(reasons),
        oldest_pending_seconds=None if oldest is None else max(0.0, now - oldest),
        newest_pending_seconds=None if newest is None else max(0.0, now - newest),
    )
