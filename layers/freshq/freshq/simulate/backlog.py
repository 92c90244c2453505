"""The backlog of a simulated queue: one line, or a line for each group of each level.

It holds tasks as a store does. A task leaves by a claim or an eviction; a task that is too old for the
queue stays, unseen. Tasks are known by their number in the load: a lower number arrived earlier.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Protocol

from freshq.policy.fairness import GroupTurns
from freshq.policy.shedding import Victim, too_late

if TYPE_CHECKING:
    from freshq.policy.rules import OverloadRules
    from freshq.policy.shedding import Codel, Eviction
    from freshq.simulate.fates import Fates
    from freshq.simulate.load import Load


class Backlog(Protocol):
    """Tasks that wait.

    `now` is in seconds throughout.
    """

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

    def count_by_group(self) -> Counter[str | None]:
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
    """

    __slots__ = ("_created", "_deadline", "_expired", "_fates", "_max_age_seconds", "_order", "_skipped",
                 "_tasks", "codel", "push")  # fmt: skip

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
        # Oldest first. The last claim skipped the first part: its tasks have less than the reserve left.
        self._skipped: deque[int] = deque()
        self._tasks: deque[int] = deque()
        # Whether the store still holds tasks that are not here any more.
        self._expired = False
        self.push = self._tasks.append

    @property
    def in_store(self) -> bool:
        """Whether a store would still list the line: it has tasks, stale ones included."""
        return self._expired or bool(self._tasks) or bool(self._skipped)

    def take(self, now: float, reserve_seconds: float = 0.0) -> int | None:
        """Remove and return the next task to claim; None if there is none."""
        tasks, created, order = self._tasks, self._created, self._order
        created_after = now - self._max_age_seconds + reserve_seconds
        if now >= order.next_look and self.in_store:
            self._look(now, created_after)
        if (tasks and created[tasks[0]] <= created_after) or self._skipped:
            self._skip(now, created_after)
        pop = tasks.pop if order.newest_first else tasks.popleft
        while tasks:
            task = pop()
            if self._deadline[task] > now + reserve_seconds:
                return task
            reason = too_late(now, self._deadline[task], reserve_seconds)
            if reason is not None:
                self._fates.shed(task, reason)
        return None

    def _skip(self, now: float, created_after: float) -> None:
        """Skip what was created by a time; return to the line what was not, as the reserve fell."""
        tasks, skipped, created = self._tasks, self._skipped, self._created
        while tasks and created[tasks[0]] <= created_after:
            skipped.append(tasks.popleft())
        while skipped and created[skipped[-1]] > created_after:
            tasks.appendleft(skipped.pop())
        self.expire(now)

    def _look(self, now: float, created_after: float) -> None:
        """Show the order the oldest task that may be claimed."""
        self._skip(now, created_after)
        switch = self._order.observe(now, self._created[self._tasks[0]] if self._tasks else None)
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
        return len(self._tasks) + len(self._skipped)

    def count_by_group(self) -> Counter[str | None]:
        """Return the number of tasks by group."""
        return Counter({None: self.count()})

    def expire(self, now: float) -> None:
        """Forget tasks that are too old for the queue."""
        created_after = now - self._max_age_seconds
        for tasks in (self._skipped, self._tasks):
            while tasks and self._created[tasks[0]] <= created_after:
                tasks.popleft()
                self._expired = True

    def oldest(self) -> int | None:
        """Return the oldest task."""
        return next(iter(self._skipped or self._tasks), None)

    def evict(self, eviction: Eviction) -> int | None:  # noqa: ARG002 - all tasks are of one group
        """Remove and return the task that is to be shed; None if there is none."""
        tasks = self._skipped or self._tasks
        return tasks.popleft() if tasks else None


class _Level:
    """The lines of one priority level that a store lists, in its order, and the turns of their groups."""

    __slots__ = ("lines", "turns")

    def __init__(self) -> None:
        self.lines: dict[str | None, LineBacklog] = {}
        self.turns = GroupTurns()


class LevelBacklog:
    """A line for each group of each priority level. Levels are drained from high to low."""

    __slots__ = ("_fates", "_groups", "_known", "_levels", "_levels_of", "_listed", "_load", "_rules")

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
        # Every line ever used, and those that a store lists now, in the order in which it does.
        self._known: dict[tuple[int, str | None], LineBacklog] = {}
        self._listed: dict[tuple[int, str | None], LineBacklog] = {}

    def _key(self, task: int) -> tuple[int, str | None]:
        return self._levels_of[task] if self._levels_of else 0, self._groups[task] if self._groups else None

    def push(self, task: int) -> None:
        """Add a task, the newest of all."""
        key = self._key(task)
        line = self._listed.get(key)
        if line is None:
            line = self._known.get(key)
            if line is None:
                line = self._known[key] = LineBacklog(self._load, self._rules, self._fates)
            self._listed[key] = line
            self._levels[key[0]].lines[key[1]] = line
        line.push(task)

    def _unlist_if_empty(self, key: tuple[int, str | None], line: LineBacklog) -> None:
        if not line.in_store:
            del self._listed[key]
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
        return sum([line.count() for line in self._listed.values()])

    def count_by_group(self) -> Counter[str | None]:
        """Return the number of tasks by group."""
        counts: Counter[str | None] = Counter()
        for (_level, group), line in self._listed.items():
            counts[group] += line.count()
        return counts

    def expire(self, now: float) -> None:
        """Forget tasks that are too old for the queue."""
        for line in self._listed.values():
            line.expire(now)

    def oldest(self) -> int | None:
        """Return the oldest task."""
        oldest = (line.oldest() for line in self._listed.values())
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
