"""The backlog of a simulated queue: one line, or a line for each group of each level.

It holds tasks as a store does. A task leaves by a claim or an eviction; a stale one stays, unseen, until a
claim looks at its line. Tasks are known by their number in the load: a lower number arrived earlier.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from freshq.policy.backlog_limit import Victim
from freshq.policy.fairness import GroupTurns
from freshq.simulate.line_backlog import LineBacklog, has_own_ages

if TYPE_CHECKING:
    from collections.abc import Collection

    from freshq.policy.backlog_limit import Eviction
    from freshq.policy.codel import Codel
    from freshq.policy.rules import OverloadRules
    from freshq.simulate.fates import Fates
    from freshq.simulate.load import Load


class Backlog(Protocol):
    """Tasks that wait.

    `now` is in seconds throughout.
    """

    @property
    def waiting(self) -> Collection[Any]:
        """Empty only if no task waits, except for tasks that the last claim skipped."""

    def push(self, task: int) -> None:
        """Add a task, the newest of all."""

    def take(self, now: float, reserve_seconds: float = 0.0, longest_wait_seconds: float = inf) -> int | None:
        """Remove and return the next task to claim, of those that waited no longer; None if there is none."""

    def late_behind(self, task: int, now: float, reserve_seconds: float) -> list[int]:
        """Remove and return the tasks that CoDel sheds behind one that was just shed."""

    def codel_of(self, task: int) -> Codel | None:
        """Return the CoDel of a task's line."""

    def group_of(self, task: int) -> str | None:
        """Return the group of a task's line."""

    def count(self) -> int:
        """Return the number of tasks; some may be stale, unless `expire` was just called."""

    def count_by_group(self) -> dict[str | None, int]:
        """Return the number of tasks by group."""

    def expire(self, now: float) -> None:
        """Forget stale tasks."""

    def oldest(self) -> int | None:
        """Return the oldest task."""

    def evict(self, eviction: Eviction) -> int | None:
        """Remove and return the task that is to be shed; None if there is none."""


class _Level:
    """The lines of one priority level that a store lists, in its order, and the turns of their groups."""

    __slots__ = ("lines", "turns")

    def __init__(self) -> None:
        self.lines: dict[str | None, LineBacklog] = {}
        self.turns = GroupTurns()


class LevelBacklog:
    """A line for each group of each priority level. Levels are drained from high to low.

    Attributes:
        waiting: The lines that a store lists, by level and group, in the order in which it does.
    """

    __slots__ = ("_groups", "_known", "_levels", "_levels_of", "_new_line", "waiting")

    def __init__(self, load: Load, rules: OverloadRules, fates: Fates) -> None:
        """Start with no task.

        Args:
            load: The tasks.
            rules: The policy.
            fates: What became of the tasks.
        """
        self._new_line = partial(LineBacklog, load, rules, fates, own_ages=has_own_ages(load, rules))
        self._groups = load.groups if rules.fair else ()
        self._levels_of = load.levels
        self._levels = {level: _Level() for level in sorted(set(load.levels) or {0}, reverse=True)}
        # Every line ever used.
        self._known: dict[tuple[int, str | None], LineBacklog] = {}
        self.waiting: dict[tuple[int, str | None], LineBacklog] = {}

    def _key(self, task: int) -> tuple[int, str | None]:
        return self._levels_of[task] if self._levels_of else 0, self._groups[task] if self._groups else None

    def push(self, task: int) -> None:
        """Add a task, the newest of all."""
        key = self._key(task)
        line = self.waiting.get(key)
        if line is None:
            line = self._known.get(key)
            if line is None:
                line = self._known[key] = self._new_line()
            self.waiting[key] = line
            self._levels[key[0]].lines[key[1]] = line
        line.push(task)

    def _unlist_if_empty(self, key: tuple[int, str | None], line: LineBacklog) -> None:
        if not line.in_store:
            del self.waiting[key]
            del self._levels[key[0]].lines[key[1]]

    def take(self, now: float, reserve_seconds: float = 0.0, longest_wait_seconds: float = inf) -> int | None:
        """Remove and return the next task to claim, of those that waited no longer; None if there is none."""
        for number, level in self._levels.items():
            working = level.lines.copy() if len(level.lines) > 1 else level.lines
            while working:
                group = level.turns.next_group(working)
                line = working[group]
                task = line.take(now, reserve_seconds, longest_wait_seconds)
                if task is not None:
                    level.turns.record(group)
                self._unlist_if_empty((number, group), line)
                if task is not None:
                    return task
                if working is level.lines:
                    break
                del working[group]
        return None

    def late_behind(self, task: int, now: float, reserve_seconds: float) -> list[int]:
        """Remove and return the tasks that CoDel sheds behind one that was just shed."""
        key = self._key(task)
        line = self.waiting.get(key)
        if line is None:
            return []
        late = line.late_behind(task, now, reserve_seconds)
        self._unlist_if_empty(key, line)
        return late

    def codel_of(self, task: int) -> Codel | None:
        """Return the CoDel of a task's line."""
        return self._known[self._key(task)].codel

    def group_of(self, task: int) -> str | None:
        """Return the group of a task's line."""
        return self._key(task)[1]

    def count(self) -> int:
        """Return the number of tasks; some may be stale, unless `expire` was just called."""
        return sum([line.count() for line in self.waiting.values()])

    def count_by_group(self) -> dict[str | None, int]:
        """Return the number of tasks by group, in the order in which a store lists the lines."""
        counts: dict[str | None, int] = {}
        for level in reversed(self._levels.values()):
            for group, line in level.lines.items():
                counts[group] = counts.get(group, 0) + line.count()
        return counts

    def expire(self, now: float) -> None:
        """Forget tasks that are too old for the queue."""
        for line in self.waiting.values():
            line.expire(now)

    def oldest(self) -> int | None:
        """Return the oldest task."""
        oldest = (line.oldest() for line in self.waiting.values())
        return min((task for task in oldest if task is not None), default=None)

    def evict(self, eviction: Eviction) -> int | None:
        """Remove and return the task that is to be shed; None if there is none."""
        for number, level in reversed(self._levels.items()):
            heads = {
                task: group
                for group, line in level.lines.items()
                if eviction.victim is not Victim.OLDEST_OF_GROUP or group == eviction.group
                if (task := line.oldest()) is not None
            }
            if heads:
                group = heads[min(heads)]
                task = level.lines[group].evict(eviction)
                self._unlist_if_empty((number, group), level.lines[group])
                return task
        return None


def backlog_for(load: Load, rules: OverloadRules, fates: Fates) -> Backlog:
    """Return the simplest backlog that holds the tasks of a load under the rules."""
    if load.levels or (rules.fair and load.groups):
        return LevelBacklog(load, rules, fates)
    return LineBacklog(load, rules, fates, own_ages=has_own_ages(load, rules))
