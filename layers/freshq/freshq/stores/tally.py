"""Exact counts, from reading every task."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from freshq.model.task import TaskStatus
from freshq.stores.base import Stats

if TYPE_CHECKING:
    from collections.abc import Iterable

    from freshq.model.task import Task
    from freshq.policy.reserve import ReserveSpans


# Ids that are kept beyond the requested ones, before they are sorted.
SLACK_IDS: Final = 1_000
STATES: Final = ("pending", "delayed", "taken", "success", "failure", "cancelled", "shed")


class FirstIds:
    """Keeps the first ids of each state, in bounded memory."""

    def __init__(self, number: int, *, newest_first: bool) -> None:
        """Start with none.

        Args:
            number: How many of each state.
            newest_first: Whether the newest pending tasks come first.
        """
        self._number = number
        self._newest_first = newest_first
        self._kept: dict[str, list[tuple[float, float, str]]] = {state: [] for state in STATES}

    def add(self, state: str, task: Task) -> None:
        """Look at a task in a state; skip records under construction, which are in none of `STATES`."""
        kept = self._kept.get(state)
        if kept is None:
            return
        kept.append((*self._rank(state, task), task.task_id))
        if len(kept) >= self._number + SLACK_IDS:
            kept.sort()
            del kept[self._number :]

    def _rank(self, state: str, task: Task) -> tuple[float, float]:
        match state:
            case "pending":
                return -task.priority, -task.created if self._newest_first else task.created
            case "delayed":
                return task.not_before or 0.0, 0.0
            case "taken":
                return task.lease_until or 0.0, 0.0
        return -task.updated, 0.0

    def ids(self) -> dict[str, tuple[str, ...]]:
        """Return the first ids of each state."""
        return {
            state: tuple(task_id for *_rank, task_id in sorted(kept)[: self._number])
            for state, kept in self._kept.items()
        }


def tally(tasks: Iterable[Task], now: float, spans: ReserveSpans, first: FirstIds | None = None) -> Stats:
    """Count tasks by state; their sum is the number of tasks.

    Args:
        tasks: Every task of a queue.
        now: The time to count at, in seconds.
        spans: When claims passed tasks over because of the reserve.
        first: Keeps the first ids of each state; None to keep none.
    """
    reasons: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    oldest, newest = math.inf, -math.inf
    for task in tasks:
        state = _state(task, now)
        counts[state] += 1
        if first is not None:
            first.add(state, task)
        if state == "shed":
            reasons[(task.shed_reason or spans.reason(task.stale_at)).value] += 1
        elif state == "pending":
            oldest, newest = min(oldest, task.created), max(newest, task.created)
    waits = counts["pending"] > 0
    return Stats(
        pending=counts["pending"],
        delayed=counts["delayed"],
        taken=counts["taken"],
        success=counts["success"],
        failure=counts["failure"],
        cancelled=counts["cancelled"],
        shed=counts["shed"],
        shed_by_reason=dict(reasons),
        oldest_pending_seconds=max(0.0, now - oldest) if waits else None,
        newest_pending_seconds=max(0.0, now - newest) if waits else None,
        ids={} if first is None else first.ids(),
    )


def _state(task: Task, now: float) -> str:
    """Return the field of `Stats` that counts a task."""
    status = task.status_at(now)
    return "delayed" if status is TaskStatus.PENDING and task.delayed else status.lower()
