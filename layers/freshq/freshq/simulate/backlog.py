"""Model the waiting tasks of a simulated queue, by age and by line."""

from __future__ import annotations

from collections import deque
from functools import partial
from heapq import heappop, heappush, nsmallest
from itertools import chain, islice
from math import inf
from operator import itemgetter, lt
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from typing_extensions import override

from freshq.model.task import MAX_SECONDS
from freshq.policy.backlog_limit import Victim
from freshq.policy.fairness import FairScheduler, GroupCosts
from freshq.policy.groups import GroupRoom, RunningCounts, StartLog
from freshq.policy.order import FIRST_TO_EXPIRE, Order
from freshq.policy.shedding import CLOCK_STEP_SECONDS, MAX_SHED_BEHIND, ShedReason
from freshq.policy.value import DEFAULT_VALUE, HEADS, PLANS, ClassLine, Decay, ServiceTimes, ValueClass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from freshq.policy.backlog_limit import Eviction
    from freshq.policy.order import OrderSwitch
    from freshq.policy.reserve import ReserveSpans
    from freshq.policy.rules import OverloadRules
    from freshq.policy.shedding import Codel
    from freshq.policy.value import Plan
    from freshq.simulate.load import Load

# Longer max ages stand for none: tasks without one have `MAX_SECONDS`, a hundred years.
LONGEST_AGE_SECONDS: Final = MAX_SECONDS / 2


class Fates:
    """The fate of every task, by its number in the load.

    Attributes:
        codes: For each task `WAITING`, `IN_TIME`, `LATE`, or the code of a shed reason in `SHED`.
        switches: Every switch of an adaptive order.
    """

    __slots__ = ("codes", "switches")

    WAITING: Final = 0
    IN_TIME: Final = 1
    LATE: Final = 2
    SHED: Final[Mapping[ShedReason, int]] = {reason: code for code, reason in enumerate(ShedReason, 3)}

    def __init__(self, count: int) -> None:
        self.codes = bytearray(count)
        self.switches: list[OrderSwitch] = []

    def shed(self, task: int, reason: ShedReason) -> None:
        """Record why a task was shed."""
        self.codes[task] = self.SHED[reason]

    def shed_waiting(self, load: Load, spans: ReserveSpans) -> None:
        """Shed tasks that still wait at the end of the run: they went stale.

        Args:
            load: The tasks.
            spans: When claims skipped tasks because of the reserve.
        """
        expired = bytes([self.SHED[ShedReason.EXPIRED]])
        if not spans:
            self.codes = self.codes.replace(bytes([self.WAITING]), expired)
            return
        for task, code in enumerate(self.codes):
            if code == self.WAITING:
                self.shed(task, spans.reason(load.deadline[task]))


class _Level:
    """The lines of one priority level that a store lists, in its order, and the turns of their groups."""

    __slots__ = ("lines", "scheduler")

    def __init__(self, scheduler: FairScheduler) -> None:
        self.lines: dict[str | None, _Line] = {}
        self.scheduler = scheduler

    def add(self, group: str | None, line: _Line) -> None:
        """List a line, in the order of keys: groups whose turns start at the same time are served in it."""
        self.lines = dict(sorted([*self.lines.items(), (group, line)], key=lambda item: item[0] or ""))


class LevelBacklog:
    """A line for each group of each priority level. Levels are drained from high to low.

    Attributes:
        waiting: The lines that a store lists, by level and group, in the order in which it does.
    """

    __slots__ = ("_charged", "_costs", "_groups", "_known", "_levels", "_levels_of", "_new_line", "_rules",
                 "_running", "_starts", "waiting")  # fmt: skip

    def __init__(self, load: Load, rules: OverloadRules, fates: Fates) -> None:
        """Start with no task.

        Args:
            load: The tasks.
            rules: The policy.
            fates: Fates of the tasks.
        """
        new_line = partial(LineBacklog, load, rules, fates, own_ages=has_own_ages(load, rules))
        self._new_line = self._line_maker(load, rules.order, new_line)
        self._groups = load.groups if rules.fair else ()
        self._levels_of = load.levels
        self._costs = GroupCosts()
        levels = sorted(set(load.levels) or {0}, reverse=True)
        self._levels = {level: _Level(FairScheduler(self._costs, rules.groups)) for level in levels}
        # The costs of the turns of the running tasks.
        self._charged: dict[int, float] = {}
        self._rules = rules.groups if self._groups and rules.groups.has_limits else None
        self._running = RunningCounts()
        self._starts = StartLog()
        # All lines that were ever used.
        self._known: dict[tuple[int, str | None], _Line] = {}
        self.waiting: dict[tuple[int, str | None], _Line] = {}

    def _line_maker(
        self, load: Load, order: Order, new_line: Callable[[], LineBacklog]
    ) -> Callable[[], _Line]:
        """Return what makes the backlog of a group, given what makes a line."""
        return new_line

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
            self._levels[key[0]].add(key[1], line)
        line.push(task)

    def _unlist_if_empty(self, key: tuple[int, str | None], line: _Line) -> None:
        if not line.in_store:
            del self.waiting[key]
            del self._levels[key[0]].lines[key[1]]

    def take(self, now: float, reserve_seconds: float = 0.0, longest_wait_seconds: float = inf) -> int | None:
        """Remove and return the next task to claim that waited no longer; None if there is none."""
        room = self._room(now)
        for number, level in self._levels.items():
            working = level.lines.copy() if len(level.lines) > 1 or room else level.lines
            while working:
                group = level.scheduler.next_group(working)
                line = working[group]
                if room is not None and not room.allows(group):
                    del working[group]
                    continue
                task = line.take(now, reserve_seconds, longest_wait_seconds)
                if task is not None:
                    self._taken(task, group, level, room)
                self._unlist_if_empty((number, group), line)
                if task is not None:
                    return task
                if working is level.lines:
                    break
                del working[group]
        return None

    def _taken(self, task: int, group: str | None, level: _Level, room: GroupRoom | None) -> None:
        """Count the turn and the start of a task."""
        if self._groups:
            self._charged[task] = level.scheduler.record(group)
        self._running.add(group, 1)
        if room is not None:
            room.start(group)

    def _room(self, now: float) -> GroupRoom | None:
        """Return the room that the limits of groups leave at `now` (seconds); None if there are none."""
        if self._rules is None:
            return None
        running = partial(self._running.of, separator=self._rules.separator)
        return GroupRoom(self._rules, running, self._starts, now)

    def late_behind(self, task: int, now: float, reserve_seconds: float) -> list[int]:
        """Remove and return the tasks that CoDel sheds behind a task that was just shed."""
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

    def seconds_of(self, group: str | None) -> float:
        """Return the average time of a group's tasks."""
        return self._costs[group]

    def expire(self, now: float) -> None:
        """Forget tasks that are too old for the queue."""
        for line in self.waiting.values():
            line.expire(now)

    def oldest(self) -> int | None:
        """Return the oldest task."""
        oldest = (line.oldest() for line in self.waiting.values())
        return min((task for task in oldest if task is not None), default=None)

    def first_to_expire(self, deadline_after: float) -> list[tuple[float, float]]:
        """Return when tasks with the nearest deadlines were created, and their deadlines, if lives differ."""
        found = (line.first_to_expire(deadline_after) for line in self.waiting.values())
        return nsmallest(FIRST_TO_EXPIRE, chain.from_iterable(found), key=itemgetter(1))

    def evict(self, eviction: Eviction) -> int | None:
        """Remove and return the task to shed; None if there is none."""
        for number, level in reversed(self._levels.items()):
            heads = {
                head: group
                for group, line in level.lines.items()
                if eviction.victim is not Victim.OLDEST_OF_GROUP or group == eviction.group
                if (head := line.first_evicted()) is not None
            }
            if heads:
                group = heads[min(heads)]
                task = level.lines[group].evict(eviction)
                self._unlist_if_empty((number, group), level.lines[group])
                return task
        return None

    def ended(self, task: int, took_seconds: float | None) -> None:
        """Replace the cost of a task's turn by the time that it took; None if it was shed instead."""
        if not self._groups:
            return
        number, group = self._key(task)
        self._running.add(group, -1)
        charged = self._charged.pop(task)
        if took_seconds is not None:
            self._levels[number].scheduler.correct(group, charged, took_seconds)
            self._costs.observe(group, took_seconds)


class PlannedBacklog(LevelBacklog):
    """As `LevelBacklog`; a plan chooses among the tasks of each group, by what was learned of the service."""

    __slots__ = ("_line_of", "_times")

    @override
    def _line_maker(
        self, load: Load, order: Order, new_line: Callable[[], LineBacklog]
    ) -> Callable[[], _Line]:
        self._times = ServiceTimes[int]()
        self._line_of = partial(_planned_line, load, by_value=order is Order.VALUE)
        return partial(PlannedGroup, PLANS[order], new_line, self._line_of, self._times)

    @override
    def take(self, now: float, reserve_seconds: float = 0.0, longest_wait_seconds: float = inf) -> int | None:
        task = super().take(now, reserve_seconds, longest_wait_seconds)
        self._times.claimed(() if task is None else (task,), now)
        return task

    @override
    def count_by_group(self) -> dict[str | None, int]:
        counts: dict[str | None, int] = {}
        for level in reversed(self._levels.values()):
            # A store lists the classes of a level, and the groups of each.
            groups = [(group, line) for group, line in level.lines.items() if isinstance(line, PlannedGroup)]
            listed = [(*each, group) for group, line in groups for each in line.counts()]
            for _class, count, group in sorted(listed, key=itemgetter(0)):
                counts[group] = counts.get(group, 0) + count
        return counts

    @override
    def ended(self, task: int, took_seconds: float | None) -> None:
        super().ended(task, took_seconds)
        if took_seconds is not None:
            self._times.ended(task, self._line_of(task), took_seconds)


def backlog_for(load: Load, rules: OverloadRules, fates: Fates) -> Backlog:
    """Return the simplest backlog that holds the tasks of a load under the rules."""
    if rules.order.plans:
        return PlannedBacklog(load, rules, fates)
    if load.levels or (rules.fair and load.groups):
        return LevelBacklog(load, rules, fates)
    return LineBacklog(load, rules, fates, own_ages=has_own_ages(load, rules))


class LineBacklog:
    """One line.

    Attributes:
        codel: Its CoDel, if there is one.
        push: Adds a task, the newest of all.
        waiting: The tasks, oldest first, except tasks that the last claim skipped: these have less than the
            reserve left, and are older.
    """

    __slots__ = ("_created", "_deadline", "_expired", "_fates", "_max_age_seconds", "_order",
                 "_own_deadlines", "_skipped", "_stale", "codel", "push", "waiting")  # fmt: skip

    def __init__(self, load: Load, rules: OverloadRules, fates: Fates, *, own_ages: bool) -> None:
        """Start with no task.

        Args:
            load: The tasks.
            rules: The policy.
            fates: Fates of the tasks.
            own_ages: Whether some tasks have a max age shorter than the queue's.
        """
        self._created = load.created
        self._deadline = load.deadline
        self._fates = fates
        self._max_age_seconds = rules.deadline_seconds
        self._order = rules.new_order()
        self.codel = rules.new_codel()
        self._skipped: deque[int] = deque()
        self.waiting: deque[int] = deque()
        self.push = self._push_with_deadline if own_ages else self.waiting.append
        # By deadline, if there are own ages: the tasks that were not stale at the last check. Some have left
        # the line since.
        self._own_deadlines: list[tuple[float, int]] = []
        # Tasks in the line that are past their own deadline.
        self._stale: set[int] = set()
        # Whether the store still holds tasks that are no longer here.
        self._expired = False

    def _push_with_deadline(self, task: int) -> None:
        self.waiting.append(task)
        heappush(self._own_deadlines, (self._deadline[task], task))

    @property
    def in_store(self) -> bool:
        """Whether a store would still list the line: it has tasks, stale ones included."""
        return self._expired or bool(self.waiting) or bool(self._skipped)

    def take(self, now: float, reserve_seconds: float = 0.0, longest_wait_seconds: float = inf) -> int | None:
        """Remove and return the next task to claim that waited no longer; None if there is none."""
        tasks, skipped, order = self.waiting, self._skipped, self._order
        if now >= order.check_at:
            self._check_order(now, reserve_seconds)
        if tasks or skipped:
            created_after = max(
                now - self._max_age_seconds + reserve_seconds,
                now - longest_wait_seconds - CLOCK_STEP_SECONDS,
            )
            if skipped or self._own_deadlines or self._created[tasks[0]] <= created_after:
                self._skip(now, created_after)
        # A claim drops the stale tasks of the line that it searches.
        self._expired = False
        return self._pop(now, now + reserve_seconds, newest_first=order.newest_first) if tasks else None

    def heads(self, now: float, reserve_seconds: float) -> list[TaskHead]:
        """Return the first tasks that may be claimed, up to `HEADS`."""
        self._skip(now, now - self._max_age_seconds + reserve_seconds)
        self._expired = False
        deadline, after = self._deadline, now + reserve_seconds
        tasks = reversed(self.waiting) if self._order.newest_first else self.waiting
        first = islice((task for task in tasks if deadline[task] > after), HEADS)
        return [TaskHead.of(task, self._created[task], deadline[task]) for task in first]

    def remove(self, task: int) -> None:
        """Remove a task that `heads` returned."""
        if not self._order.newest_first:
            self.waiting.remove(task)
            return
        newer = []
        while (last := self.waiting.pop()) != task:
            newer.append(last)
        self.waiting.extend(reversed(newer))

    def late_behind(self, task: int, now: float, reserve_seconds: float) -> list[int]:
        """Remove and return the tasks that CoDel sheds behind a task that was just shed."""
        tasks, created, codel = self.waiting, self._created, self.codel
        late: list[int] = []
        passed: list[int] = []
        while (
            tasks
            and codel is not None
            and len(late) < MAX_SHED_BEHIND
            and codel.sheds_behind(now, now - created[tasks[0]])
        ):
            behind = tasks.popleft()
            (late if self._deadline[behind] > now + reserve_seconds else passed).append(behind)
        tasks.extendleft(reversed(passed))
        return late

    def _pop(self, now: float, deadline_after: float, *, newest_first: bool) -> int | None:
        """Remove and return the best task with a deadline after a time; None if there is none."""
        tasks, deadline = self.waiting, self._deadline
        pop = tasks.pop if newest_first else tasks.popleft
        passed = []
        while tasks:
            task = pop()
            if deadline[task] > deadline_after:
                break
            if deadline[task] > now:
                passed.append(task)
            else:
                self._stale.discard(task)
        else:
            task = None
        put_back = tasks.append if newest_first else tasks.appendleft
        for skipped in reversed(passed):
            put_back(skipped)
        return task

    def _skip(self, now: float, created_after: float) -> None:
        """Skip tasks created by a time; return newer ones to the line, because the reserve fell."""
        tasks, skipped, created = self.waiting, self._skipped, self._created
        while tasks and created[tasks[0]] <= created_after:
            skipped.append(tasks.popleft())
        while skipped and created[skipped[-1]] > created_after:
            tasks.appendleft(skipped.pop())
        self.expire(now)

    def _check_order(self, now: float, reserve_seconds: float) -> None:
        """Show the order the oldest task that may be claimed, if a store lists the line."""
        if not self.in_store:
            return
        self._skip(now, now - self._max_age_seconds + reserve_seconds)
        claimable = (task for task in self.waiting if self._deadline[task] > now + reserve_seconds)
        oldest = next(claimable, None)
        nearest = self.first_to_expire(now + reserve_seconds)
        switch = self._order.observe(now, None if oldest is None else self._created[oldest], nearest)
        if switch is not None:
            self._fates.switches.append(switch)

    def first_to_expire(self, deadline_after: float) -> list[tuple[float, float]]:
        """Return when tasks with the nearest deadlines were created, and their deadlines, if lives differ."""
        waits = (
            (deadline, task)
            for deadline, task in self._own_deadlines
            if deadline > deadline_after and self._fates.codes[task] == Fates.WAITING
        )
        return [(self._created[task], deadline) for deadline, task in nsmallest(FIRST_TO_EXPIRE, waits)]

    def codel_of(self, task: int) -> Codel | None:
        """Return the CoDel of a task's line."""
        return self.codel

    def group_of(self, task: int) -> str | None:
        """Return the group of a task's line."""
        return None

    def count(self) -> int:
        """Return the number of tasks; some may be stale, unless `expire` was just called."""
        return len(self.waiting) + len(self._skipped) - len(self._stale)

    def count_by_group(self) -> dict[str | None, int]:
        """Return the number of tasks by group."""
        return {None: self.count()}

    def seconds_of(self, group: str | None) -> float:
        """Return the average time of a group's tasks."""
        return 1.0

    def expire(self, now: float) -> None:
        """Forget stale tasks."""
        own_deadlines, stale = self._own_deadlines, self._stale
        while own_deadlines and own_deadlines[0][0] <= now:
            _deadline, task = heappop(own_deadlines)
            if self._fates.codes[task] == self._fates.WAITING:
                stale.add(task)
        created_after = now - self._max_age_seconds
        for tasks in (self._skipped, self.waiting):
            while tasks and (self._created[tasks[0]] <= created_after or tasks[0] in stale):
                stale.discard(tasks.popleft())
                self._expired = True

    def oldest(self) -> int | None:
        """Return the oldest task."""
        return next((task for task in chain(self._skipped, self.waiting) if task not in self._stale), None)

    def first_evicted(self) -> tuple[float, int] | None:
        """Return the task that is evicted first, after the value of its class."""
        task = self.oldest()
        return None if task is None else (0.0, task)

    def evict(self, eviction: Eviction) -> int | None:
        """Remove and return the task to shed; None if there is none."""
        task = self.oldest()
        if task is not None:
            (self._skipped if task in self._skipped else self.waiting).remove(task)
        return task

    def ended(self, task: int, took_seconds: float | None) -> None:
        """Do nothing: one line has every turn."""


class TaskHead(NamedTuple):
    """A waiting task, as a plan sees it.

    Attributes:
        task_id: Its number in the load.
        created: When it was created, in seconds.
        deadline: Its deadline in seconds; None if it has none.
    """

    task_id: int
    created: float
    deadline: float | None

    @classmethod
    def of(cls, task: int, created: float, deadline: float) -> TaskHead:
        """Return a task of a load, in which every task has a deadline, some of them far away."""
        return cls(task, created, None if deadline - created > LONGEST_AGE_SECONDS else deadline)


def _planned_line(load: Load, task: int, *, by_value: bool) -> tuple[str | None, ValueClass]:
    """Return the group and the class of a task."""
    head = TaskHead.of(task, load.created[task], load.deadline[task])
    life_seconds = inf if head.deadline is None else head.deadline - head.created
    value = load.values[task] if by_value and load.values else DEFAULT_VALUE
    decays = by_value and load.decays and load.decays[task]
    group = load.groups[task] if load.groups else None
    return group, ValueClass.of(value, life_seconds, Decay.LINEAR if decays else Decay.STEP)


class PlannedGroup:
    """A line for each class of values of one group."""

    __slots__ = ("_classes", "_group", "_line_of", "_new_line", "_new_plan", "_times", "codel")

    def __init__(
        self,
        new_plan: type[Plan],
        new_line: Callable[[], LineBacklog],
        line_of: Callable[[int], tuple[str | None, ValueClass]],
        times: ServiceTimes[int],
    ) -> None:
        """Start empty.

        Args:
            new_plan: What chooses among the tasks.
            new_line: Returns an empty line.
            line_of: Returns the group and the class of a task.
            times: The service times seen so far.
        """
        self._new_plan = new_plan
        self._new_line = new_line
        self._line_of = line_of
        self._times = times
        # In the order of the keys of a store's lines.
        self._classes: dict[ValueClass, LineBacklog] = {}
        self._group: str | None = None
        self.codel = None

    def push(self, task: int) -> None:
        """Add a task, the newest of all."""
        self._group, of_class = self._line_of(task)
        if of_class not in self._classes:
            self._classes = dict(sorted([*self._classes.items(), (of_class, self._new_line())]))
        self._classes[of_class].push(task)

    @property
    def in_store(self) -> bool:
        """Whether a store would still list a line of the group."""
        return any(line.in_store for line in self._classes.values())

    def take(self, now: float, reserve_seconds: float, longest_wait_seconds: float) -> int | None:
        """Remove and return the next task to claim; None if there is none. No task waits too long for it."""
        slots = self._times.slots(1)
        lines = [
            ClassLine(
                of_class,
                self._times.times((self._group, of_class), slots),
                partial(line.heads, now, reserve_seconds),
            )
            for of_class, line in self._classes.items()
            if line.in_store
        ]
        first = next(self._new_plan(lines, slots, now).turns(), None)
        if first is None:
            return None
        task: int = first[0].task_id
        self._classes[self._line_of(task)[1]].remove(task)
        return task

    def late_behind(self, task: int, now: float, reserve_seconds: float) -> list[int]:
        """Return nothing: CoDel needs the order FIFO."""
        return []

    def count(self) -> int:
        """Return the number of tasks; some may be stale, unless `expire` was just called."""
        return sum(line.count() for line in self._classes.values())

    def expire(self, now: float) -> None:
        """Forget stale tasks."""
        for line in self._classes.values():
            line.expire(now)

    def oldest(self) -> int | None:
        """Return the oldest task."""
        oldest = (line.oldest() for line in self._classes.values())
        return min((task for task in oldest if task is not None), default=None)

    def first_to_expire(self, deadline_after: float) -> list[tuple[float, float]]:
        """Return when tasks with the nearest deadlines were created, and their deadlines, if lives differ."""
        found = (line.first_to_expire(deadline_after) for line in self._classes.values())
        return nsmallest(FIRST_TO_EXPIRE, chain.from_iterable(found), key=itemgetter(1))

    def evict(self, eviction: Eviction) -> int | None:
        """Remove and return the task to shed; None if there is none."""
        first = self.first_evicted()
        return None if first is None else self._classes[self._line_of(first[1])[1]].evict(eviction)

    def first_evicted(self) -> tuple[float, int] | None:
        """Return the task that is evicted first, the oldest of the least value, after that value."""
        found = ((of_class.value, line.oldest()) for of_class, line in self._classes.items())
        return min(((value, task) for value, task in found if task is not None), default=None)

    def counts(self) -> list[tuple[ValueClass, int]]:
        """Return the number of tasks of each class that a store lists."""
        return [(of_class, line.count()) for of_class, line in self._classes.items() if line.in_store]


_Line: TypeAlias = LineBacklog | PlannedGroup
# Tasks that wait: lines, or a single one for loads and rules without levels and groups, which is faster.
Backlog: TypeAlias = LevelBacklog | LineBacklog


def has_own_ages(load: Load, rules: OverloadRules) -> bool:
    """Return whether some tasks have a max age shorter than the queue's."""
    of_queue = map(rules.deadline_seconds.__add__, load.created)
    return any(map(lt, load.deadline, of_queue))
