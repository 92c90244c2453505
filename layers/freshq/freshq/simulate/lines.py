"""Where tasks wait: one line, a line for each group, a line or lines for each priority level."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from freshq.policy.fairness import GroupTurns
from freshq.policy.shedding import ShedReason, too_late

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from freshq.policy.order import OrderSwitch
    from freshq.policy.rules import OverloadRules
    from freshq.policy.shedding import Reserve
    from freshq.simulate.load import Load


class Ledger:
    """What became of every task.

    Attributes:
        fates: For each task 0 while it waits, or a code; `FATES` has those of the reasons.
        turned_away: Tasks shed for another reason than their age or the door.
        switches: Each time that an adaptive order turned round.
    """

    __slots__ = ("fates", "switches", "turned_away")

    IN_TIME: Final = 1
    LATE: Final = 2
    FATES: Final[Mapping[ShedReason, int]] = {reason: code for code, reason in enumerate(ShedReason, 3)}

    def __init__(self, count: int) -> None:
        self.fates = bytearray(count)
        self.turned_away = 0
        self.switches: list[OrderSwitch] = []

    def shed(self, task: int, reason: ShedReason) -> None:
        """Write down why a task is not done."""
        self.fates[task] = self.FATES[reason]

    def turn_away(self, task: int, reason: ShedReason) -> None:
        """Write down that a task is not done for another reason than its age."""
        self.fates[task] = self.FATES[reason]
        self.turned_away += 1


class Lines(Protocol):
    """Tasks that wait, by their number; a lower number arrived earlier.

    Attributes:
        waiting: How many there are; some may be stale, unless `purge` was just called.
    """

    waiting: int

    def push(self, task: int) -> None:
        """Let a task wait: the newest of all."""

    def take(self, now: float) -> int | None:
        """Return the next task to serve, shedding on the way what must not be claimed any more."""

    def purge(self, now: float) -> None:
        """Shed what is stale at the old end."""

    def oldest(self) -> int:
        """Return the oldest task of the lowest level; some task must wait."""

    def oldest_of(self, group: str | None) -> int:
        """Return the oldest task of a group in the lowest level in which it has any."""

    def remove(self, task: int) -> None:
        """Take out a task that is the oldest or the newest of its line."""

    def waiting_by_group(self) -> dict[str | None, int]:
        """Return how many tasks of each group wait."""


class Line:
    """One line, served at the end that its order says."""

    __slots__ = ("_codel", "_created", "_deadline", "_ledger", "_order", "_reserve", "tasks", "waiting")

    def __init__(self, load: Load, rules: OverloadRules, reserve: Reserve, ledger: Ledger) -> None:
        self.tasks: deque[int] = deque()
        self.waiting = 0
        self._created = load.created
        self._deadline = load.deadline
        self._order = rules.new_order()
        self._codel = rules.new_codel()
        self._reserve = reserve
        self._ledger = ledger

    def push(self, task: int) -> None:
        """Let a task wait: the newest of all."""
        self.tasks.append(task)
        self.waiting += 1

    def take(self, now: float) -> int | None:
        """Return the next task to serve, shedding on the way what must not be claimed any more."""
        if self._order.adaptive:
            self._observe(now)
        tasks, deadline = self.tasks, self._deadline
        horizon = now + self._reserve.seconds
        pop = tasks.pop if self._order.newest_first else tasks.popleft
        while tasks:
            task = pop()
            if deadline[task] > horizon and not (self._codel and self._sheds(task, now)):
                self.waiting = len(tasks)
                return task
            reason = too_late(now, deadline[task], self._reserve.seconds)
            if reason is not None:
                self._ledger.shed(task, reason)
        self.waiting = 0
        return None

    def _sheds(self, task: int, now: float) -> bool:
        if self._codel is None or not self._codel.sheds(now, now - self._created[task]):
            return False
        self._ledger.turn_away(task, ShedReason.CODEL)
        return True

    def _observe(self, now: float) -> None:
        """Let the order see the oldest live task."""
        if self.tasks and self._deadline[self.tasks[0]] <= now:
            self.purge(now)
        age_seconds = now - self._created[self.tasks[0]] if self.tasks else None
        switch = self._order.observe(now, age_seconds)
        if switch is not None:
            self._ledger.switches.append(switch)

    def purge(self, now: float) -> None:
        """Shed what is stale at the old end."""
        tasks, deadline = self.tasks, self._deadline
        while tasks and deadline[tasks[0]] <= now:
            self._ledger.shed(tasks.popleft(), ShedReason.EXPIRED)
        self.waiting = len(tasks)

    def oldest(self) -> int:
        """Return the oldest task of the lowest level; some task must wait."""
        return self.tasks[0]

    def oldest_of(self, group: str | None) -> int:  # noqa: ARG002 - all are of one group
        """Return the oldest task of a group in the lowest level in which it has any."""
        return self.tasks[0]

    def remove(self, task: int) -> None:
        """Take out a task that is the oldest or the newest of its line."""
        if self.tasks[0] == task:
            self.tasks.popleft()
        else:
            self.tasks.pop()
        self.waiting = len(self.tasks)

    def waiting_by_group(self) -> dict[str | None, int]:
        """Return how many tasks of each group wait."""
        return {None: self.waiting}


class FairLines:
    """A line for each group; the groups take turns."""

    __slots__ = ("_groups", "_lines", "_new_line", "_turns", "waiting")

    def __init__(self, load: Load, new_line: Callable[[], Line]) -> None:
        self.waiting = 0
        self._groups = load.groups
        self._new_line = new_line
        self._lines: dict[str | None, Line] = {}
        self._turns = GroupTurns()

    def push(self, task: int) -> None:
        """Let a task wait: the newest of all."""
        group = self._groups[task] if self._groups else None
        if group not in self._lines:
            self._lines[group] = self._new_line()
        self._lines[group].push(task)
        self._turns.add(group)
        self.waiting += 1

    def take(self, now: float) -> int | None:
        """Return the next task to serve, shedding on the way what must not be claimed any more."""
        while self._turns:
            group = self._turns.next()
            line = self._lines[group]
            before = line.waiting
            task = line.take(now)
            self.waiting -= before - line.waiting
            if not line.waiting:
                self._turns.discard(group)
            if task is not None:
                return task
        return None

    def purge(self, now: float) -> None:
        """Shed what is stale at the old end."""
        for line in self._lines.values():
            line.purge(now)
        self.waiting = sum(line.waiting for line in self._lines.values())

    def oldest(self) -> int:
        """Return the oldest task of the lowest level; some task must wait."""
        return min(line.tasks[0] for line in self._lines.values() if line.tasks)

    def oldest_of(self, group: str | None) -> int:
        """Return the oldest task of a group in the lowest level in which it has any."""
        return self._lines[group].tasks[0]

    def remove(self, task: int) -> None:
        """Take out a task that is the oldest or the newest of its line."""
        self._lines[self._groups[task] if self._groups else None].remove(task)
        self.waiting -= 1

    def waiting_by_group(self) -> dict[str | None, int]:
        """Return how many tasks of each group wait."""
        return {group: line.waiting for group, line in self._lines.items()}


class Levels:
    """Lines for each priority level, drained from high to low."""

    __slots__ = ("_levels", "_lines", "_new_lines", "waiting")

    def __init__(self, load: Load, new_lines: Callable[[], Lines]) -> None:
        self.waiting = 0
        self._levels = load.levels
        self._lines: dict[int, Lines] = {
            level: new_lines() for level in sorted(set(load.levels), reverse=True)
        }

    def push(self, task: int) -> None:
        """Let a task wait: the newest of all."""
        self._lines[self._levels[task]].push(task)
        self.waiting += 1

    def take(self, now: float) -> int | None:
        """Return the next task to serve, shedding on the way what must not be claimed any more."""
        for lines in self._lines.values():
            if lines.waiting:
                before = lines.waiting
                task = lines.take(now)
                self.waiting -= before - lines.waiting
                if task is not None:
                    return task
        return None

    def purge(self, now: float) -> None:
        """Shed what is stale at the old end."""
        for lines in self._lines.values():
            lines.purge(now)
        self.waiting = sum(lines.waiting for lines in self._lines.values())

    def oldest(self) -> int:
        """Return the oldest task of the lowest level; some task must wait."""
        return next(lines.oldest() for lines in reversed(self._lines.values()) if lines.waiting)

    def oldest_of(self, group: str | None) -> int:
        """Return the oldest task of a group in the lowest level in which it has any."""
        held = (lines for lines in reversed(self._lines.values()) if lines.waiting_by_group().get(group))
        return next(held).oldest_of(group)

    def remove(self, task: int) -> None:
        """Take out a task that is the oldest or the newest of its line."""
        self._lines[self._levels[task]].remove(task)
        self.waiting -= 1

    def waiting_by_group(self) -> dict[str | None, int]:
        """Return how many tasks of each group wait."""
        total: dict[str | None, int] = {}
        for lines in self._lines.values():
            for group, waiting in lines.waiting_by_group().items():
                total[group] = total.get(group, 0) + waiting
        return total


def lines_for(load: Load, rules: OverloadRules, reserve: Reserve, ledger: Ledger) -> Lines:
    """Return the simplest lines in which the tasks of a load can wait under the rules."""

    def new_line() -> Line:
        return Line(load, rules, reserve, ledger)

    def new_lines() -> Lines:
        return FairLines(load, new_line) if rules.fair else new_line()

    return Levels(load, new_lines) if load.levels else new_lines()
