"""The lines that this process knows, and what a claim asks of them. Pure: whoever reads lines is an argument.

A line is a group within a priority level, and has a key that sorts by level, then by group. Claims serve the
levels from high to low, and within a level the groups in turn.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby, islice
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from freshq.model.forks import new_lock
from freshq.policy.groups import GroupRoom, StartLog
from freshq.policy.value import HEADS, ClassLine, ValueClass
from freshq.queue.reading import every_line
from freshq.stores.lines import END, NEXT, parse_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from freshq.model.task import Task
    from freshq.policy.groups import Group, GroupRules
    from freshq.stores.lines import (
        ClaimRequest,
        Found,
        Head,
        LevelSchedulers,
        LimitedLines,
        LineReader,
        NewPlan,
        Range,
    )

# Lines that one claim knows: of all levels, or of each if there are more. Enough for fair turns, few enough
# for a claim of a millisecond.
WINDOW_LINES: Final = 64
# Further lines that a plan sees: all classes of some groups, or some classes of many groups.
PLANNED_LINES: Final = 1_000
# Lines that a claim of one task asks at a time, if there are that many: the first may be empty by then.
MIN_ASKED: Final = 4
# How long a process uses its list of the lines of groups with room, if there are too many for a window.
OPEN_SECONDS: Final = 1.0
# How long a process relies on a look for lines: tasks that go stale, or that the reserve keeps from claims,
# hide those behind them until the next look.
RELOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Level:
    """Lines of one priority level.

    Attributes:
        number: The priority level.
        keys: The keys of the lines of each group, ascending: one, unless the queue serves by value.
        unless: Ranges of keys in which no better line may be; empty if the lines were just read.
        is_whole: Whether these are all lines of the level.
        is_only: Whether no other level had lines. Then none may appear below it either.
    """

    number: int
    keys: Mapping[Group, Sequence[str]]
    unless: tuple[Range, ...] = ()
    is_whole: bool = field(default=True, compare=False)
    is_only: bool = field(default=False, compare=False)


def gaps(level: int, keys: Sequence[str], *, is_only: bool = False) -> tuple[Range, ...]:
    """Return the ranges of keys in which a line would be a better one than all lines of a level, or one more.

    Args:
        level: The level.
        keys: The keys of all its lines, ascending.
        is_only: Whether to include the keys of lower levels.
    """
    ranges: list[Range] = []
    after = "" if is_only and level else str(level)
    for key in keys:
        if after < key:
            ranges.append((after, key))
        after = key + NEXT
    return (*ranges, (after, END))


def by_group(keys: Iterable[str]) -> dict[Group, list[str]]:
    """Return the keys of lines of one level by their groups, in the order of the groups' first keys.

    Keys with a class sort by class first. Then the groups are sorted by name, as they are without classes,
    because groups whose turns start at the same time are served in this order.
    """
    found: dict[Group, list[str]] = {}
    has_classes = False
    for key in keys:
        line = parse_line(key)
        found.setdefault(line.group, []).append(key)
        has_classes |= line.of_class != ""
    return dict(sorted(found.items(), key=_name_of)) if has_classes and len(found) > 1 else found


def _name_of(lines: tuple[Group, object]) -> str:
    return lines[0] or ""


class LineBook:
    """The lines of one queue, as far as one process has seen them. Thread-safe.

    Up to `WINDOW_LINES` lines are all known; a claim asks those of the highest level, unless a line has
    appeared in a gap between them or above. If there are more, each level shows a window, which moves on once
    each of its lines could have had a turn: until then claims only see new levels.
    """

    def __init__(self, schedulers: LevelSchedulers) -> None:
        """Know no line.

        Args:
            schedulers: Decide which group of a level is served next.
        """
        self._schedulers = schedulers
        self._lock = new_lock()
        # The highest level with lines at the last look; None if there was none, or no look.
        self._known: Level | None = None
        # How many tasks to take before the next look, if it has more lines than are known.
        self._turns_left = inf
        # Whether the lines of all levels were too many for a window.
        self._is_partial = False
        # The last line of the last window of each level.
        self._cursors: dict[int, str] = {}
        # False while each look finds other lines: then a claim that asks known lines would ask in vain.
        self._is_steady = True
        # When a claim last looked for lines, and for stale tasks in them.
        self._looked_at = -inf

    def copy(self, schedulers: LevelSchedulers) -> LineBook:
        """Return an independent copy with other schedulers, for a peek."""
        copied = LineBook(schedulers)
        with self._lock:
            copied._cursors, copied._is_partial = dict(self._cursors), self._is_partial
        return copied

    @property
    def is_partial(self) -> bool:
        """Whether the lines of all levels were too many for a window."""
        return self._is_partial

    def is_whole(self) -> None:
        """Note that the lines of all levels fit a window."""
        self._is_partial = False

    @property
    def has_lines(self) -> bool:
        """Whether the last look found lines."""
        return self._known is not None

    def choose(self, count: int) -> tuple[Level, dict[Group, int]] | None:
        """Return the known lines, and what to ask of them for some tasks; None if a claim must look first."""
        level = self._known
        if level is None or not self._is_steady or self._turns_left <= 0:
            return None
        if len(level.keys) == 1:
            return level, dict.fromkeys(level.keys, count)
        return level, self.ask(level, [*level.keys], count)

    def note_look(self, now: float) -> None:
        """Note that a claim found too few tasks in all lines at `now` (seconds), and looks for stale ones."""
        self._looked_at = now

    def note_skipped(self) -> None:
        """Note that claims skip live tasks: because of them PostgreSQL may take fewer than asked."""
        self._looked_at = -inf

    def has_no_more(
        self, level: Level, asked: Mapping[Group, int], tasks: Sequence[Task], now: float
    ) -> bool:
        """Return whether a claim has taken all there are, so that it need not look for lines.

        There was no other line, or it would have taken none; and each line gave less than was asked of it.

        Args:
            level: The known lines.
            asked: What the claim asked of them.
            tasks: What it took.
            now: When, in seconds.
        """
        if not (tasks and level.is_only and 0 <= now - self._looked_at < RELOOK_SECONDS):
            return False
        served = Counter(task.group for task in tasks)
        return all(served[group] < asked.get(group, 0) for group in level.keys)

    def look(self, reader: LineReader[Any]) -> Iterator[Level]:
        """Yield the lines of each level, the highest level first: all lines if they fit a window."""
        with self._lock:
            earlier, self._known = self._known, None
        is_first = True
        for level in self.levels(reader):
            if is_first:
                self._note(level, earlier)
            is_first = False
            yield level

    def _note(self, level: Level, earlier: Level | None) -> None:
        """Remember the lines of the highest level."""
        keys, is_whole = [*chain.from_iterable(level.keys.values())], level.is_whole
        above = chr(ord("0") + level.number + 1)
        whole = partial(gaps, level.number, sorted(keys), is_only=level.is_only)
        unless = whole() if is_whole else ((above, END),)
        is_same = earlier is None or {*keys} <= {*chain.from_iterable(earlier.keys.values())}
        with self._lock:
            self._known = replace(level, unless=unless)
            self._turns_left = inf if is_whole else len(keys)
            self._is_steady = is_same or not is_whole

    def levels(self, reader: LineReader[Any]) -> Iterable[Level]:
        """Return lines as `look` does, for a claim that looks for lines anyway."""
        size = WINDOW_LINES + reader.more_lines
        if not self._is_partial:
            keys = reader.lines("", END, size + 1)
            if len(keys) <= size:
                levels = [(digit, [*level]) for digit, level in groupby(keys, key=itemgetter(0))]
                is_only = len(levels) == 1
                return [
                    Level(int(digit), by_group(keys), is_only=is_only) for digit, keys in reversed(levels)
                ]
            self._is_partial = True
        return self._windows(reader, size)

    def _windows(self, reader: LineReader[Any], size: int) -> Iterator[Level]:
        """Yield up to `size` lines of each level, as the lines of all levels are too many."""
        seen, until, last = 0, END, reader.last_line(END)
        while last is not None:
            number = int(last[0])
            below = reader.last_line(str(number))
            keys = self._window(reader, number, below or "", until, size)
            seen += len(keys)
            is_whole = len(keys) < size
            if keys:
                yield Level(number, by_group(keys), is_whole=is_whole)
            until, last = str(number), below
        if seen < size:
            self._is_partial = False

    def _window(self, reader: LineReader[Any], number: int, start: str, until: str, size: int) -> list[str]:
        """Return the lines of a level that follow its last window, wrapping around."""
        after = self._cursors.get(number) or reader.begin(start, until)
        after = max(start, after)
        keys = reader.lines(after, until, size)
        if len(keys) < size and after != start:
            wrapped = reader.lines(start, until, size - len(keys))
            keys = [*keys, *(key for key in wrapped if key <= after)]
        if keys:
            self._cursors[number] = keys[-1]
        return keys

    def ask(
        self, level: Level, groups: Sequence[Group], count: int, *, every: bool = False
    ) -> dict[Group, int]:
        """Return how many tasks to take from which lines of a level, in turn.

        For one task these are a few lines more than needed. For several tasks they are not: a line without a
        turn could then give a task although another one has two turns.

        Args:
            level: The level.
            groups: The groups whose lines may have tasks.
            count: How many tasks are wanted.
            every: Whether to ask every line for at least one.
        """
        if len(groups) == 1:
            return {groups[0]: count}
        turns = self._schedulers.plan(level.number, groups, count)
        in_turn = sum(1 for wanted in turns.values() if wanted)
        number = len(turns) if every else MIN_ASKED if count == 1 else in_turn
        return {group: max(1, wanted) for group, wanted in islice(turns.items(), number)}

    def in_turn(self, level: Level, asked: Mapping[Group, int], tasks: list[Task]) -> list[Task]:
        """Return the tasks that were taken from a level in the order of claims, and count their turns.

        Args:
            level: The level.
            asked: What `ask` returned.
            tasks: The tasks, those of each line in its order.
        """
        self._turns_left -= len(tasks)
        groups = {task.group for task in tasks}
        if len(groups) == 1:
            self._schedulers.record(level.number, tasks[0].group, len(tasks))
            return tasks
        # In the order of the plan, as if each task were claimed on its own.
        lines = {
            group: iter([task for task in tasks if task.group == group]) for group in asked if group in groups
        }
        return list(self._schedulers.interleave(level.number, lines))


def planned(
    reader: LineReader[Found], request: ClaimRequest, new_plan: NewPlan, keys: Sequence[str]
) -> Iterator[Found]:
    """Yield claimable tasks of the lines of a group in the order of a plan."""
    moment, limit = request.moment(), request.limit

    def read(key: str) -> Sequence[Head]:
        if not reader.searches(key):
            return ()
        return reader.heads(key, moment, HEADS, newest_first=new_plan.kind.newest_first)

    lines: list[ClassLine[Any]] = []
    for key in keys:
        line = parse_line(key)
        times = new_plan.meter.times(line, new_plan.slots)
        lines.append(ClassLine(ValueClass.of_code(line.of_class), times, partial(read, key)))
    for heads in new_plan.kind(lines, new_plan.slots, moment.now).turns():
        for start in range(0, len(heads), limit):  # because `found` may lock the tasks
            yield from reader.found(heads[start : start + limit])


def place_in_line(task: Task) -> tuple[float, str]:
    """Return the place of a task in its line."""
    return task.created, task.task_id


class OpenLines:
    """The lines of groups that have room, as seen by the claims of one process. Thread-safe."""

    def __init__(self, book: LineBook) -> None:
        self._book = book
        self._lock = new_lock()
        # When to list the lines again, the rules, and the keys of the lines of groups that had room.
        self._open: tuple[float, GroupRules | None, list[str]] = (0.0, None, [])

    def levels(self, claim: CountedClaim, now: float) -> Iterator[Level]:
        """Yield lines of each level, the highest level first, of groups that may have room.

        Args:
            claim: The claim.
            now: Current time by a clock that is never set, in seconds.
        """
        if not self._book.is_partial:
            levels = list(self._book.look(claim.reader))
            if all(level.is_whole for level in levels):
                for level in levels:
                    claim.count([*level.keys])
                    yield level
                return
        renew = False
        while True:
            keys, is_new = self._keys(claim, now, renew=renew)
            yield from self._counted(claim, keys)
            if is_new:
                return
            renew = True

    @staticmethod
    def _counted(claim: CountedClaim, keys: Sequence[str]) -> Iterator[Level]:
        for digit, of_level in groupby(keys, key=itemgetter(0)):
            remaining = list(of_level)
            for start in range(0, len(remaining), WINDOW_LINES):
                level = Level(int(digit), by_group(remaining[start : start + WINDOW_LINES]))
                claim.count([*level.keys])
                yield level

    def _keys(self, claim: CountedClaim, now: float, *, renew: bool) -> tuple[list[str], bool]:
        """Return the keys of lines of groups with room, rotated; and whether they were listed just now."""
        rules = claim.request.groups
        with self._lock:
            until, known_for, keys = self._open
            if not renew and now < until and known_for == rules:
                limit = claim.request.limit
                self._open = (until, rules, keys[limit:] + keys[:limit])
                return sorted(keys, key=itemgetter(0), reverse=True), False
        found = every_line(claim.reader)
        if len(found) <= WINDOW_LINES:
            self._book.is_whole()
        room = claim.counted()
        keys = [key for key in found if room.allows(parse_line(key).group)]
        with self._lock:
            self._open = (now + OPEN_SECONDS, rules, keys)
        return sorted(keys, key=itemgetter(0), reverse=True), True


class CountedClaim:
    """One claim within limits, for which the running tasks were counted.

    Attributes:
        reader: Reads the lines.
        request: The claim.
        room: The room that the limits leave.
    """

    def __init__(self, reader: LineReader[Any], request: ClaimRequest, room: GroupRoom) -> None:
        self.reader = reader
        self.request = request
        self.room = room

    def count(self, groups: Sequence[Group]) -> None:
        """Count the running tasks of the given groups, if they are not counted yet."""

    def counted(self) -> GroupRoom:
        """Return the room of all groups."""
        return self.room


class LimitedClaim(CountedClaim):
    """One claim under the lock that counts what runs."""

    def __init__(self, reader: LimitedLines, request: ClaimRequest, now: float) -> None:
        self._running_tasks = reader
        self._log = StartLog(reader.starts() if request.groups.has_rates else None)
        self._now = now
        self._counts: dict[str, int] = {}
        super().__init__(reader, request, GroupRoom(request.groups, self._running, self._log, now))
        for kind in request.groups.kinds:
            self.room.allows_kind(kind)
        reader.full_kinds = self.room.full_kinds

    @override
    def count(self, groups: Sequence[Group]) -> None:
        """Count the running tasks of the given groups in one call, if no group has groups below it."""
        names = [group for group in groups if group is not None and group not in self._counts]
        rules = self.request.groups
        if rules.separator is None and rules.counts_running and names:
            self._counts |= {**dict.fromkeys(names, 0), **self._running_tasks.running(names)}

    @override
    def counted(self) -> GroupRoom:
        """Return the room of all groups, by one call that counts every running task."""
        rules, counts = self.request.groups, Counter[str]()
        for group, number in self._running_tasks.running_by_group().items():
            for name in rules.lineage(group):
                counts[str(name)] += number
        return GroupRoom(rules, counts.__getitem__, self._log, self._now)

    def _running(self, name: str) -> int:
        if name not in self._counts:
            separator = self.request.groups.separator
            if separator is None:
                self.count([name])
            else:
                self._counts[name] = self._running_tasks.running_below(name, separator)
        return self._counts[name]

    def end(self, now: float) -> None:
        """Store the starts of the tasks that are taken at `now` (seconds)."""
        rules = self.request.groups
        if rules.has_rates and self.room.started:
            self._log.delay(self.room.rated, now)
            self._running_tasks.keep_starts(self._log.values(rules, now))
