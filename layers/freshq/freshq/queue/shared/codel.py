"""CoDel for each line of a queue, in this process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from freshq.model.task import Task
    from freshq.policy.rules import OverloadRules
    from freshq.policy.shedding import Codel
    from freshq.stores.lines import Line


class LineCodel:
    """Decides which claimed tasks to shed instead of running them. Thread-safe."""

    def __init__(self, rules: OverloadRules) -> None:
        """Start with no line seen. Without a CoDel rule nothing is ever shed."""
        self._rules = rules
        self._lock = threading.Lock()
        self._lines: dict[Line, Codel] = {}

    def sheds(self, task: Task, now: float) -> bool:
        """Return whether to shed a task that was claimed at `now` (seconds).

        Only first attempts count: a retried task is old for another reason than a slow queue.
        """
        if task.attempts > 1:
            return False
        line = (task.priority, task.group)
        with self._lock:
            codel = self._lines.get(line) or self._rules.new_codel()
            if codel is None:
                return False
            self._lines[line] = codel
            return codel.sheds(now, now - task.created)
