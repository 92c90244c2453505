"""Read what waits in the lines of a queue, how much and how old; and count every task, by reading them.

Live tasks have a deadline after `now`, and were created after `created_after`, both in seconds.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections import Counter, defaultdict
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final

from freshq.model.answers import Waiting, WaitsFor
from freshq.model.task import TaskStatus
from freshq.policy.value import ValueClass
from freshq.stores.base import STATES, VALUE_ENDS, Stats
from freshq.stores.lines import ALL_LINES, END, line_key, parse_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from freshq.model.task import Task
    from freshq.policy.order import Order
    from freshq.policy.reserve import ReserveSpans
    from freshq.stores.base import Lines
    from freshq.stores.lines import WaitingReader

LEVELS: Final = range(10)
# With more lines, a store with an order by deadlines reads all of them at once instead of one by one.
MAX_LINES: Final = 64
# Lines that one call finds, if all are read: MariaDB ends a recursion after a thousand steps.
PAGE_LINES: Final = 500
# Ids that are kept beyond the requested ones, before they are sorted.
SLACK_IDS: Final = 1_000


def every_line(reader: WaitingReader) -> list[str]:
    """Return the keys of all lines that may have tasks, by several calls if they are many."""
    found: list[str] = []
    while len(page := reader.lines(found[-1] if found else "", END, PAGE_LINES)) == PAGE_LINES:
        found += page
    return found + page


def keys_of(reader: WaitingReader) -> list[str]:
    """Return the keys of all lines that may have tasks; if they are many, only `ALL_LINES`."""
    if not reader.by_deadline:
        return reader.lines("", END, sys.maxsize)
    keys = reader.lines("", END, MAX_LINES + 1)
    return keys if len(keys) <= MAX_LINES else [ALL_LINES]


def count_waiting(
    store: Lines, queue: str, now: float, created_after: float, at_most: int
) -> dict[str | None, int]:
    """Count the live tasks by group, reading little more than `at_most` of each line, or of many lines."""

    def count(reader: WaitingReader) -> dict[str | None, int]:
        counts = Counter[str | None]()
        for key in keys_of(reader):
            counts.update(reader.count(key, now, created_after, at_most))
        return dict(counts)

    return store.read_waiting(queue, now, count)


def newest_created(
    store: Lines, queue: str, now: float, created_after: float, at_most: int
) -> dict[str | None, list[float]]:
    """Return when live tasks were created, by group: the `at_most` newest of each line, or of many lines."""

    def newest(reader: WaitingReader) -> dict[str | None, list[float]]:
        times = defaultdict[str | None, list[float]](list)
        for key in keys_of(reader):
            for group, created in reader.newest(key, now, created_after, at_most).items():
                times[group] += created
        return dict(times)

    return store.read_waiting(queue, now, newest)


def oldest_created(store: Lines, queue: str, now: float, created_after: float) -> float | None:
    """Return when the oldest live task was created; None if there is none."""

    def oldest(reader: WaitingReader) -> float | None:
        found = {key: reader.oldest_created(key, now, created_after) for key in keys_of(reader)}
        if reader.by_deadline and None in found.values() and ALL_LINES not in found:
            # A search of a line ends after some number of stale tasks.
            found[ALL_LINES] = reader.oldest_created(ALL_LINES, now, created_after)
        return min((created for created in found.values() if created is not None), default=None)

    return store.read_waiting(queue, now, oldest)


def first_to_expire(store: Lines, queue: str, now: float, created_after: float) -> list[tuple[float, float]]:
    """Return when some live tasks were created, and their deadlines: the nearest, if the store knows them.

    A task with a max age of its own may be late although an older task is not.
    """
    return store.read_waiting(
        queue, now, lambda reader: reader.first_to_expire(ALL_LINES, now, created_after)
    )


def oldest_expiring(store: Lines, queue: str, now: float, created_after: float, until: float) -> float | None:
    """Return when the oldest live task was created whose deadline is not after `until`; None without one.

    Other tasks are not read, which would cost a look at every index entry of an ended task.
    """
    return store.read_waiting(
        queue, now, lambda reader: min(reader.expiring(now, created_after, until), default=None)
    )


def oldest_tasks(
    store: Lines,
    queue: str,
    now: float,
    created_after: float,
    count: int,
    groups: Collection[str | None] | None = None,
    level: int | None = None,
    *,
    has_classes: bool = False,
) -> list[Task]:
    """Return the `count` oldest live tasks of the lowest priority level, and there of the least value.

    They are of some groups, if these are named, and then of one priority level, if it is named. Only if the
    queue has classes of values, all lines are read however many they are: a group has any number of them.
    """
    levels = LEVELS if level is None else (level,)

    def asked(reader: WaitingReader) -> list[str]:
        read = every_line if has_classes else keys_of
        if groups is None:
            return read(reader)
        named = [line_key(each, group) for each in levels for group in groups]
        keys = named if level is not None else read(reader)
        return named if ALL_LINES in keys else [key for key in keys if parse_line(key).group in groups]

    def oldest(reader: WaitingReader) -> list[Task]:
        ids: list[str] = []
        for _least, alike in groupby(sorted(asked(reader), key=_worth), key=_worth):
            if (wanted := count - len(ids)) > 0:
                lines = (reader.oldest(key, now, created_after, wanted) for key in alike)
                ids += [task_id for _created, task_id in islice(heapq.merge(*lines), wanted)]
        return reader.listed(ids)

    return store.read_waiting(queue, now, oldest)


def _worth(key: str) -> tuple[str, float]:
    """Return the level of a line, and the value of its tasks."""
    return key[:1], 0.0 if key == ALL_LINES else ValueClass.of_code(parse_line(key).of_class).value


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


class ValueTally:
    """Sums up the value that tasks delivered and lost. A cancelled task is nobody's loss.

    Attributes:
        delivered: As `Stats.value_delivered`; 0 if there is none.
        lost: As `Stats.value_lost`; 0 if there is none.
        counted: Whether a task that ended has a value or a decay.
    """

    def __init__(self) -> None:
        self.delivered = 0.0
        self.lost = 0.0
        self.counted = False

    def add(self, task: Task, status: TaskStatus) -> None:
        """Add a task in its current status."""
        if status not in VALUE_ENDS:
            return
        self.counted |= task.has_value
        delivered = task.value_at(task.updated) if status is TaskStatus.SUCCESS else 0.0
        self.delivered += delivered
        self.lost += task.worth - delivered

    @property
    def sums(self) -> dict[str, Any]:
        """The fields of `Stats`, if a task has a value."""
        return {"value_delivered": self.delivered, "value_lost": self.lost} if self.counted else {}


def waiting(
    claimable: Sequence[Task], delayed: Sequence[Task], order: Order | None, *, paused: bool
) -> list[Waiting]:
    """Return tasks with the reason why each waits.

    Args:
        claimable: Tasks in the order of claims.
        delayed: Tasks that are not in a line yet.
        order: Order of every line by creation time; None if lines have no such order, or differ. Then no
            task is shown as waiting for its group's turn.
        paused: Whether claims are suspended.
    """
    if paused:
        shown = [Waiting(task, WaitsFor.RESUME) for task in claimable]
    elif order is None:
        shown = [Waiting(task, None) for task in claimable]
    else:
        sign = -1 if order.newest_first else 1
        shown = list(_in_turn(claimable, sign))
    return [*shown, *(Waiting(task, WaitsFor.DUE) for task in delayed)]


def _in_turn(claimable: Sequence[Task], sign: int) -> Iterator[Waiting]:
    """Yield tasks; a task waits for its turn if another task of its level precedes it against the order.

    Within a group tasks keep the order, so the other task belongs to another group.
    """
    latest: dict[int, float] = {}
    for task in claimable:
        place = sign * task.created
        before = latest.get(task.priority, place)
        latest[task.priority] = max(before, place)
        yield Waiting(task, WaitsFor.TURN if place < before else None)


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
    values = ValueTally()
    oldest, newest = math.inf, -math.inf
    for task in tasks:
        status = task.status_at(now)
        state = _state(task, status)
        counts[state] += 1
        values.add(task, status)
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
        **values.sums,
    )


def _state(task: Task, status: TaskStatus) -> str:
    """Return the field of `Stats` that counts a task with a status."""
    return "delayed" if status is TaskStatus.PENDING and task.delayed else status.lower()
