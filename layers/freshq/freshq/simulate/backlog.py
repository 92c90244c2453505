"""The backlog of a simulated queue: one line, or a line for each group of each level.

It holds tasks as a store does. A task leaves by a claim or an eviction; a task that is too old for the
queue stays, unseen. Tasks are known by their number in the load: a lower number arrived earlier.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from freshq.policy.fairness import GroupTurns
from freshq.policy.shedding import Victim, too_late

if TYPE_CHECKING:
    from collections.abc import Collection

    from freshq.policy.rules import OverloadRules
    from freshq.policy.shedding import Codel, Eviction
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

    def take(self, now: float, reserve_seconds: float = 0.0) -> int | None:
        """Remove and return the next task to claim; None if there is none.

        On the way it sheds tasks that are too late by a max age shorter than the queue's.
        """

    def codel_of(self, task: int) -> Codel | None:
        """Return the CoDel of a task's line."""

    def group_of(self, task: int) -> str | None:
        """Return the group of a task's line."""

    def count(self) -> int:
        """Return the number of tasks; some may be stale, unless `expire` was just called."""

    def count_by_group(self) -> dict[str | None, int]:
        """Return the number of tasks by group."""

    def expire(self, now: float) -> None:
        """Forget tasks that are too old for the queue."""

    def oldest(self) -> int | None:
        """Return the oldest task."""

    def evict(self, eviction: Eviction) -> int | None:
        """Remove and return the task that is to be shed; None if there is none."""


class LineBacklog:
    """One line.

    Attributes:
        codel: Its CoDel, if there is one.
        push: Adds a task, the newest of all.
        waiting: The tasks, oldest first, without those that the last claim skipped: these have less than
            the reserve left, and are older.
    """

    __slots__ = ("_created", "_deadline", "_expired", "_fates", "_max_age_seconds", "_order", "_skipped",
                 "codel", "push", "waiting")  # fmt: skip

    def __init__(self, load: Load, rules: OverloadRules, fates: Fates) -> None:
        """Start with no task.

        Args:
            load: The tasks.
            rules: The policy.
            fates: Where to record what is shed.
        """
        self._created = load.created
        self._deadline = load.deadline
        self._fates = fates
        self._max_age_seconds = rules.deadline_seconds
        self._order = rules.new_order()
        self.codel = rules.new_codel()
        self._skipped: deque[int] = deque()
        self.waiting: deque[int] = deque()
        self.push = self.waiting.append
        # Whether the store still holds tasks that are not here any more.
        self._expired = False

    @property
    def in_store(self) -> bool:
        """Whether a store would still list the line: it has tasks, stale ones included."""
        return self._expired or bool(self.waiting) or bool(self._skipped)

    def take(self, now: float, reserve_seconds: float = 0.0) -> int | None:
        """Remove and return the next task to claim; None if there is none."""
        tasks, skipped, order = self.waiting, self._skipped, self._order
        if now >= order.next_look:
            self._look(now, reserve_seconds)
        if not tasks and not skipped:
            return None
        created_after = now - self._max_age_seconds + reserve_seconds
        if skipped or self._created[tasks[0]] <= created_after:
            self._skip(now, created_after)
        deadline = self._deadline
        pop = tasks.pop if order.newest_first else tasks.popleft
        while tasks:
            task = pop()
            if deadline[task] > now + reserve_seconds:
                return task
            reason = too_late(now, deadline[task], reserve_seconds)
            if reason is not None:
                self._fates.shed(task, reason)
        return None

    def _skip(self, now: float, created_after: float) -> None:
        """Skip what was created by a time; return to the line what was not, as the reserve fell."""
        tasks, skipped, created = self.waiting, self._skipped, self._created
        while tasks and created[tasks[0]] <= created_after:
            skipped.append(tasks.popleft())
        while skipped and created[skipped[-1]] > created_after:
            tasks.appendleft(skipped.pop())
        self.expire(now)

    def _look(self, now: float, reserve_seconds: float) -> None:
        """Show the order the oldest task that may be claimed, if a store lists the line."""
        if not self.in_store:
            return
        self._skip(now, now - self._max_age_seconds + reserve_seconds)
        switch = self._order.observe(now, self._created[self.waiting[0]] if self.waiting else None)
        if switch is not None:
            self._fates.switches.append(switch)

    def codel_of(self, task: int) -> Codel | None:  # noqa: ARG002 - all tasks are of one line
        """Return the CoDel of a task's line."""
        return self.codel

    def group_of(self, task: int) -> str | None:  # noqa: ARG002 - all tasks are of one group
        """Return the group of a task's line."""
        return None

    def count(self) -> int:
        """Return the number of tasks; some may be stale, unless `expire` was just called."""
        return len(self.waiting) + len(self._skipped)

    def count_by_group(self) -> dict[str | None, int]:
        """Return the number of tasks by group."""
        return {None: len(self.waiting) + len(self._skipped)}

    def expire(self, now: float) -> None:
        """Forget tasks that are too old for the queue."""
        created_after = now - self._max_age_seconds
        for tasks in (self._skipped, self.waiting):
            while tasks and self._created[tasks[0]] <= created_after:
                tasks.popleft()
                self._expired = True

    def oldest(self) -> int | None:
        """Return the oldest task."""
        return next(iter(self._skipped or self.waiting), None)

    def evict(self, eviction: Eviction) -> int | None:  # noqa: ARG002 - all tasks are of one group
        """Remove and return the task that is to be shed; None if there is none."""
        tasks = self._skipped or self.waiting
        return tasks.popleft() if tasks else None


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

    __slots__ = ("_fates", "_groups", "_known", "_levels", "_levels_of", "_load", "_rules", "waiting")

    def __init__(self, load: Load, rules: OverloadRules, fates: Fates) -> None:
        """Start with no task.

        Args:
            load: The tasks.
            rules: The policy.
            fates: Where to record what is shed.
        """
        self._load = load
        self._rules = rules
        self._fates = fates
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
                line = self._known[key] = LineBacklog(self._load, self._rules, self._fates)
            self.waiting[key] = line
            self._levels[key[0]].lines[key[1]] = line
        line.push(task)

    def _unlist_if_empty(self, key: tuple[int, str | None], line: LineBacklog) -> None:
        if not line.in_store:
            del self.waiting[key]
            del self._levels[key[0]].lines[key[1]]

    def take(self, now: float, reserve_seconds: float = 0.0) -> int | None:
        """Remove and return the next task to claim; None if there is none."""
        for number, level in self._levels.items():
            working = level.lines.copy() if len(level.lines) > 1 else level.lines
            while working:
                group = level.turns.next_group(working)
                line = working[group]
                task = line.take(now, reserve_seconds)
                if task is not None:
                    level.turns.record(group)
                self._unlist_if_empty((number, group), line)
                if task is not None:
                    return task
                if working is level.lines:
                    break
                del working[group]
        return None

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
        """Return the number of tasks by group."""
        counts: dict[str | None, int] = {}
        for (_level, group), line in self.waiting.items():
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
    kind = LevelBacklog if load.levels or (rules.fair and load.groups) else LineBacklog
    return kind(load, rules, fates)
