"""A count of all tasks by fate, in parts: a queue counts only some states by itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from freshq.model.task import TaskStatus
from freshq.policy.shedding import ShedReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from freshq.model.task import Task
    from freshq.queue.base import BaseQueue

# A part is read this often, of so many tasks.
PART_TASKS: Final = 1_000
EVERY_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Survey:
    """What the last complete pass over the tasks found, or the first one so far.

    Attributes:
        tasks: How many tasks it read.
        complete: Whether it read all.
        by_status: Number of tasks by status.
        by_reason: Number of shed tasks by reason.
    """

    tasks: int
    complete: bool
    by_status: Mapping[str, int]
    by_reason: Mapping[str, int]


class Surveyor:
    """Surveys a queue's tasks part by part, again and again."""

    def __init__(self, queue: BaseQueue) -> None:
        self._queue = queue
        self._next_part_at = 0.0
        self._last: Survey | None = None
        self._start()

    def _start(self) -> None:
        self._cursor: str | None = None
        self._tasks = 0
        self._statuses: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def restart(self) -> None:
        """Restart at the next snapshot: an operator changed something."""
        self._start()
        self._next_part_at = 0.0

    def survey(self) -> Survey:
        """Return the survey; read the next part if it is time to.

        Raises:
            StoreError: If the store did not answer.
        """
        now = self._queue.now()
        if now >= self._next_part_at:
            self._survey_part()
            self._next_part_at = now + EVERY_SECONDS
        return self._last or self._so_far(complete=False)

    def _survey_part(self) -> None:
        page = self._queue.list(limit=PART_TASKS, cursor=self._cursor)
        for task in page:
            self._count(task)
        self._cursor = page.cursor
        if page.cursor is None:
            self._last = self._so_far(complete=True)
            self._start()

    def _count(self, task: Task) -> None:
        self._tasks += 1
        self._statuses[task.status.value] += 1
        if task.status is TaskStatus.SHED:
            self._reasons[task.shed_reason.value if task.shed_reason else ShedReason.EXPIRED.value] += 1

    def _so_far(self, *, complete: bool) -> Survey:
        return Survey(self._tasks, complete, dict(self._statuses), dict(self._reasons))
