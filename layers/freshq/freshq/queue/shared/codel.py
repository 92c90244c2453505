"""CoDel for each line of a queue, in this process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from freshq.model.task import Task
    from freshq.policy.codel import Codel
    from freshq.policy.rules import OverloadRules
    from freshq.stores.lines import Line


class LineCodel:
    """Decides which tasks to shed instead of running them. Thread-safe.

    Only first attempts are shed: a retried task is old for another reason than a slow queue.
    """

    def __init__(self, rules: OverloadRules) -> None:
        """Start with no line seen. Without a CoDel rule nothing is ever shed."""
        self._rules = rules
        self._lock = threading.Lock()
        self._lines: dict[Line, Codel] = {}

    @property
    def has_one_line(self) -> bool:
        """Whether tasks of one line only were claimed."""
        with self._lock:
            return len(self._lines) == 1

    def sheds(self, task: Task, now: float) -> bool:
        """Return whether to shed a task that was claimed at `now` (seconds)."""
        if task.attempts > 1:
            return False
        line = (task.priority, task.group)
        with self._lock:
            codel = self._lines.get(line) or self._rules.new_codel()
            if codel is None:
                return False
            self._lines[line] = codel
            return codel.sheds(now, now - task.created)

    def sheds_behind(self, task: Task, now: float) -> bool:
        """Return whether to shed a task that waits in a line in which one was shed at `now` (seconds)."""
        with self._lock:
            codel = self._lines[task.priority, task.group]
        return task.attempts == 0 and codel.sheds_behind(now, now - task.created)
