"""Which task adds most to the value that a queue delivers in time.

A line holds tasks of one class: of like value, like max age and the same decay. Within a class the order of
creation is the order of deadlines, so a plan needs only the newest tasks of each class.

The plan takes the dearest tasks that can all still be done in time, and serves the one of them whose
deadline is nearest. A cheaper task precedes a dearer one only if all dearer ones fit even if services take
long. Without this margin a plan delivers less than levels by value if service times vary.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapify, heappop, heappush
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from freshq.policy.order import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
    from typing import Self

# Values outside this range would be mistakes; stores keep whole millionths.
SMALLEST_VALUE: Final = 1e-6
LARGEST_VALUE: Final = 1e12
DEFAULT_VALUE: Final = 1.0
# Bounds of the cost of a task, in units, and its cost if it was put without one.
SMALLEST_COST: Final = 1e-6
LARGEST_COST: Final = 1e9
DEFAULT_COST: Final = 1.0
# Classes for each doubling of the value. One would cost up to 0.03 of the value that can be delivered.
BANDS_PER_DOUBLING: Final = 2
# Added to the band of a value, so that all bands are positive: from 88 to 207, two hexadecimal digits.
BAND_OFFSET: Final = 128
# Max ages from a millisecond to a year, in one digit of base 36, by powers of two.
AGE_OFFSET: Final = 10
AGE_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
# A band, a max age and a decay.
CODE: Final = re.compile("[0-9a-f]{2}[0-9a-z][ls]")
# Service times before they are used; a plan without them serves the dearest task.
MIN_TIMES: Final = 5
# An average follows about the last hundred services.
NEW_SHARE: Final = 0.02
AVERAGED: Final = 100
# A line gets service times of its own if its average is this many standard errors from the average of all
# lines. About five of a thousand lines pass this test by chance.
SURE_DEVIATIONS: Final = 3.0
# The averages must also differ by this share: among lines that are nearly alike the newest task is served.
CLEAR_DIFFERENCE: Final = 0.1
# Number of lines whose averages are kept.
MAX_LINES: Final = 1_000
# The margin of a plan in standard deviations: nine in ten exponential service times are shorter.
SAFE_DEVIATIONS: Final = 1.3
# The minimum margin with several slots: they become free at any time, even if services are equally long.
SAFE_FACTOR: Final = 1.3
# Deadlines that are missed by less than this share of the time left count as met: times are rounded.
TOLERANCE: Final = 1e-3
# The number of slots in use is the largest of this many last claims.
SLOT_CLAIMS: Final = 50
# Tasks of a class that a plan reads. More tasks would hardly change which one is first.
HEADS: Final = 64
# Tasks in one plan. More tasks would not change which one is first.
MAX_PLANNED: Final = 64


class Decay(StrEnum):
    """How the value of a task falls until its deadline: not at all, or steadily to nothing.

    Examples:
        >>> from freshq.policy import Decay
        >>> receipt = queue.put("report", value=3, decay=Decay.LINEAR)
    """

    STEP = "step"
    LINEAR = "linear"


def band_of(value: float) -> int:
    """Return the band of a value: from `least_of` it up to the next band."""
    return math.floor(BANDS_PER_DOUBLING * math.log2(value))


def least_of(band: int) -> float:
    """Return the least value in a band."""
    return float(2.0 ** (band / BANDS_PER_DOUBLING))


def value_at(moment: float, value: float, created: float, deadline: float, *, decays: bool) -> float:
    """Return what a task is worth if it is done at a moment: nothing after its deadline.

    Args:
        moment: When it is done, in seconds.
        value: Its value.
        created: When it was created, in seconds.
        deadline: Its deadline in seconds; infinite if it is never stale.
        decays: Whether its value falls steadily to 0 at its deadline.
    """
    if moment > deadline:
        return 0.0
    if not decays or deadline == math.inf:
        return value
    return value * min(1.0, (deadline - moment) / max(1e-6, deadline - created))


class ValueClass(NamedTuple):
    """Tasks of like value, like max age and the same decay.

    Attributes:
        band: The band of the value, as `band_of` returns it.
        age_digit: The max age by powers of two; the last digit also if there is none.
        decay: How their value falls.
    """

    band: int
    age_digit: int
    decay: Decay

    @classmethod
    def of(cls, value: float, max_age_seconds: float, decay: Decay) -> Self:
        """Return the class of a task.

        Args:
            value: Its value.
            max_age_seconds: Time from its creation to its deadline; infinite without one.
            decay: How its value falls.
        """
        last = len(AGE_DIGITS) - 1
        shortest = 2.0**-AGE_OFFSET
        age_digit = last
        if max_age_seconds < 2.0 ** (last - AGE_OFFSET):
            age_digit = math.floor(math.log2(max(shortest, max_age_seconds))) + AGE_OFFSET
        return cls(band_of(value), age_digit, decay)

    @classmethod
    def of_code(cls, code: str) -> ValueClass:
        """Return the class with a code; if it is empty or damaged, that of tasks that have no value.

        A damaged code must not keep claims from the other lines.
        """
        if not CODE.fullmatch(code):
            return ANY_CLASS
        decay = Decay.LINEAR if code[3] == Decay.LINEAR[0] else Decay.STEP
        return cls(int(code[:2], 16) - BAND_OFFSET, AGE_DIGITS.index(code[2]), decay)

    @property
    def code(self) -> str:
        """Four characters; the codes of dearer classes sort later."""
        return f"{self.band + BAND_OFFSET:02x}{AGE_DIGITS[self.age_digit]}{self.decay[0]}"

    @property
    def value(self) -> float:
        """The least value in the class."""
        return least_of(self.band)


# The class of tasks that were put without a value or a deadline.
ANY_CLASS: Final = ValueClass.of(DEFAULT_VALUE, math.inf, Decay.STEP)


class Head(Protocol):
    """A waiting task near the head of its line."""

    @property
    def task_id(self) -> Hashable:
        """Its id."""

    @property
    def created(self) -> float:
        """When it was created, in seconds."""

    @property
    def deadline(self) -> float | None:
        """Its deadline in seconds; None if it is never stale."""


HeadT = TypeVar("HeadT", bound=Head)
KeyT = TypeVar("KeyT")


class LineTimes(NamedTuple):
    """How long it takes to serve a task of a line.

    Attributes:
        mean_seconds: The average; 0 if it is not known.
        safe_seconds: A time that few services exceed; infinite if it is not known.
        least_seconds: A time that few services fall below.
    """

    mean_seconds: float = 0.0
    safe_seconds: float = math.inf
    least_seconds: float = 0.0


UNKNOWN: Final = LineTimes()


class _Schedule:
    """Tasks that are all done in time, the nearest deadline first.

    A task ends after its own service and a `1 / slots` share of the services before it: one slot is free now,
    and the others become free in turn.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._left: list[float] = []
        # For each task: the length of its service, and by how much it could end later.
        self._seconds: list[float] = []
        self._slack: list[float] = []

    def add(self, left_seconds: float, seconds: float) -> bool:
        """Add a task, if it and all others are done in time then; return whether they are.

        Args:
            left_seconds: Time until its deadline.
            seconds: How long its service takes.
        """
        place = bisect_right(self._left, left_seconds)
        slack = left_seconds * (1 + TOLERANCE) - sum(self._seconds[:place]) / self._slots - seconds
        delay = seconds / self._slots
        later = self._slack[place:]
        if not (slack >= 0 and (not later or min(later) >= delay)):
            return False
        self._left.insert(place, left_seconds)
        self._seconds.insert(place, seconds)
        self._slack[place:] = [slack, *[each - delay for each in later]]
        return True

    def can_wait(self, seconds: float) -> bool:
        """Return whether all tasks are still in time behind another one of this length."""
        return min(self._slack, default=0.0) >= seconds / self._slots

    def __len__(self) -> int:
        return len(self._left)


class Ranked(NamedTuple, Generic[HeadT]):
    """A waiting task with what a plan needs to know of it.

    Attributes:
        head: The task.
        left_seconds: Time until its deadline.
        decays: Whether its value falls while it waits, so that it cannot wait at no loss.
        times: How long its service takes.
        rank: Sorts the highest value per second of service first; among equals the latest deadline.
    """

    head: HeadT
    left_seconds: float
    decays: bool
    times: LineTimes
    rank: tuple[float, float]

    @classmethod
    def of(cls, head: HeadT, value: float, times: LineTimes, now: float, *, decays: bool) -> Self:
        """Return a task at a time.

        Args:
            head: The task.
            value: The value of its class.
            times: The service times of its line.
            now: The time in seconds.
            decays: Whether the value of its class decays; without a deadline it does not.
        """
        deadline = head.deadline
        if deadline is None:
            left_seconds, decays = math.inf, False
        else:
            left_seconds = deadline - now
            if decays:
                value = value_at(now, value, head.created, deadline, decays=True)
        rank = -value / (times.mean_seconds or 1.0), -left_seconds
        return cls(head, left_seconds, decays, times, rank)


def plan(ranked: Iterable[Ranked[HeadT]], slots: int, shortest_seconds: float = math.inf) -> list[HeadT]:
    """Return the tasks to serve next, in order; at least one if there is any.

    A task that dearer tasks leave too little time is passed over.

    Args:
        ranked: Waiting tasks by `Ranked.rank`; read as far as needed.
        slots: How many tasks are served at the same time.
        shortest_seconds: The least of their `safe_seconds`.
    """
    remaining = iter(ranked)
    if (first := next(remaining, None)) is None:
        return []
    chosen = _Chosen[HeadT](slots, shortest_seconds)
    for each in chain([first], remaining):
        if not chosen.add_safe(each):
            if not chosen.may_be_done(each):
                continue
            if not chosen.fits(each):
                return chosen.by_deadline() or [each.head]
            if each.decays:
                return [each.head]
            chosen.add(each)
        if chosen.is_full:
            break
    return chosen.by_deadline() or [first.head]


class _Chosen(Generic[HeadT]):
    """Tasks that are all done in time, each by its safe time.

    The schedule by their average times says which other tasks may be done beside them. It is made once it is
    needed: until then all of them are done in time by their safe times, and so by their average times, which
    are shorter.
    """

    def __init__(self, slots: int, shortest_seconds: float) -> None:
        """Choose nothing yet; the arguments are those of `plan`."""
        self._slots, self._shortest_seconds = slots, shortest_seconds
        self._tasks: list[Ranked[HeadT]] = []
        self._safe = _Schedule(slots)
        self._by_mean: _Schedule | None = None

    def add_safe(self, task: Ranked[HeadT]) -> bool:
        """Add a task that is done in time by its safe time, if its average time need not be looked at."""
        mean_seconds, safe_seconds, least_seconds = task.times
        if self._by_mean is not None or task.decays or not least_seconds <= mean_seconds <= safe_seconds:
            return False
        if not self._safe.add(task.left_seconds, safe_seconds):
            return False
        self._tasks.append(task)
        return True

    def may_be_done(self, task: Ranked[HeadT]) -> bool:
        """Reserve the average time of a task; return whether it may be done in time beside the others.

        A task whose own deadline is near stays, because its service may be short.
        """
        if task.left_seconds * (1 + TOLERANCE) < task.times.least_seconds:
            return False
        if self._by_mean is None:
            self._by_mean = _Schedule(self._slots)
            for each in self._tasks:
                self._by_mean.add(each.left_seconds, each.times.mean_seconds)
        return self._by_mean.add(task.left_seconds, task.times.mean_seconds) or not len(self._by_mean)

    def fits(self, task: Ranked[HeadT]) -> bool:
        """Reserve the safe time of a task; return whether it and all others are done in time then."""
        seconds = task.times.safe_seconds
        # A task that decays goes first, so all others must fit behind it.
        return self._safe.add(min(task.left_seconds, seconds) if task.decays else task.left_seconds, seconds)

    def add(self, task: Ranked[HeadT]) -> None:
        """Add a task that fits."""
        self._tasks.append(task)

    @property
    def is_full(self) -> bool:
        """Whether no further task can be chosen."""
        return len(self._tasks) == MAX_PLANNED or not self._safe.can_wait(self._shortest_seconds)

    def by_deadline(self) -> list[HeadT]:
        """Return the tasks, the nearest deadline first."""
        return [each.head for each in sorted(self._tasks, key=attrgetter("left_seconds"))]


@dataclass(slots=True)
class ClassLine(Generic[HeadT]):
    """A line of one class.

    Attributes:
        of_class: The class.
        times: How long their services take.
        read: Reads its newest tasks, the newest first; or its oldest.
        tasks: The tasks that were read and not served yet, by rank; None before they are read.
    """

    of_class: ValueClass
    times: LineTimes
    read: Callable[[], Iterable[HeadT]]
    tasks: list[Ranked[HeadT]] | None = None

    @property
    def first_rank(self) -> tuple[float, float]:
        """The rank of its first task; before it is read, one before all tasks of its class."""
        if self.tasks:
            return self.tasks[0].rank
        return -self.of_class.value / (self.times.mean_seconds or 1.0), -math.inf


class ValuePlan(Generic[HeadT]):
    """The waiting tasks of one group by class, in the order in which they add most value.

    Attributes:
        newest_first: Which end of the lines it reads.
    """

    newest_first = True

    def __init__(self, lines: Iterable[ClassLine[HeadT]], slots: int, now: float) -> None:
        """Read nothing yet.

        Args:
            lines: The lines of the group.
            slots: How many tasks are served at the same time.
            now: Current time in seconds.
        """
        self._lines = list(lines)
        self._slots = slots
        self._now = now

    def turns(self) -> Iterator[list[HeadT]]:
        """Yield the tasks to serve, as many at a time as there are slots, until none is left."""
        shortest_seconds = min((line.times.safe_seconds for line in self._lines), default=math.inf)
        while planned := plan(self._by_rank(), self._slots, shortest_seconds):
            served = planned[: self._slots]
            ids = {head.task_id for head in served}
            for line in self._lines:
                line.tasks = line.tasks and [each for each in line.tasks if each.head.task_id not in ids]
            yield served

    def _by_rank(self) -> Iterator[Ranked[HeadT]]:
        """Yield the tasks by rank. A line is read once no other one has a dearer task than all of its own."""
        heap = [(line.first_rank, number, 0 if line.tasks else -1) for number, line in enumerate(self._lines)]
        heapify(heap)
        while heap:
            _rank, number, place = heappop(heap)
            tasks = self._tasks_of(self._lines[number])
            if place >= 0:
                yield tasks[place]
            if place + 1 < len(tasks):
                heappush(heap, (tasks[place + 1].rank, number, place + 1))

    def _tasks_of(self, line: ClassLine[HeadT]) -> list[Ranked[HeadT]]:
        """Return the tasks of a line by rank; read them at first."""
        if line.tasks is None:
            value, decays = line.of_class.value, line.of_class.decay is Decay.LINEAR
            found = (Ranked.of(head, value, line.times, self._now, decays=decays) for head in line.read())
            line.tasks = sorted(found, key=attrgetter("rank"))
        return line.tasks


class DeadlinePlan(Generic[HeadT]):
    """The waiting tasks of one group by class, those first whose deadline is the earliest that can be met.

    Shortest time to extinction: Panwar, Towsley and Wolf, "Optimal scheduling policies for a class of queues
    with customer deadlines to the beginning of service", Journal of the ACM 35(4), 1988.

    Attributes:
        newest_first: Which end of the lines it reads.
    """

    newest_first = False

    def __init__(self, lines: Iterable[ClassLine[HeadT]], slots: int, now: float) -> None:
        """Read nothing yet; the arguments are those of `ValuePlan`."""
        self._lines = list(lines)
        self._slots = slots
        self._now = now

    def turns(self) -> Iterator[list[HeadT]]:
        """Yield the tasks to serve, as many at a time as there are slots, until none is left."""
        ranked = [
            Ranked.of(head, DEFAULT_VALUE, line.times, self._now, decays=False)
            for line in self._lines
            for head in line.read()
        ]
        ranked.sort(key=lambda each: (each.left_seconds < each.times.mean_seconds, each.left_seconds))
        for start in range(0, len(ranked), self._slots):
            yield [each.head for each in ranked[start : start + self._slots]]


class Plan(Protocol):
    """Decides in which order the tasks of a group are served.

    Attributes:
        newest_first: Which end of the lines it reads.
    """

    newest_first: bool

    def __init__(self, lines: Iterable[ClassLine[Any]], slots: int, now: float) -> None:
        """Read nothing yet."""

    def turns(self) -> Iterator[list[Any]]:
        """Yield the tasks to serve, as many at a time as there are slots, until none is left."""


PLANS: Final[Mapping[Order, type[Plan]]] = {Order.VALUE: ValuePlan, Order.DEADLINE: DeadlinePlan}


@dataclass(slots=True)
class Average:
    """The average and the variance of about the last hundred services."""

    count: int = 0
    mean_seconds: float = 0.0
    variance: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a service."""
        self.count += 1
        weight = max(1 / self.count, NEW_SHARE)
        difference = seconds - self.mean_seconds
        self.mean_seconds += weight * difference
        self.variance = (1 - weight) * (self.variance + weight * difference * difference)

    def differs_from(self, of_all: Average) -> bool:
        """Return whether the average is clearly different, and not just by chance."""
        shares = sum(1 / min(each.count, AVERAGED) for each in (self, of_all))
        error_seconds = math.sqrt(of_all.variance * shares)
        least_seconds = max(CLEAR_DIFFERENCE * of_all.mean_seconds, SURE_DEVIATIONS * error_seconds)
        return abs(self.mean_seconds - of_all.mean_seconds) > least_seconds

    def times(self, slots: int) -> LineTimes:
        """Return the service times of tasks that share a number of slots."""
        margin_seconds = SAFE_DEVIATIONS * math.sqrt(self.variance)
        safe_seconds = self.mean_seconds + margin_seconds
        if slots > 1:
            safe_seconds = max(safe_seconds, SAFE_FACTOR * self.mean_seconds)
        return LineTimes(self.mean_seconds, safe_seconds, max(0.0, self.mean_seconds - margin_seconds))


class ServiceTimes(Generic[KeyT]):
    """Learns what serves the tasks of a queue, from claims and ends."""

    def __init__(self) -> None:
        """Start with nothing known."""
        self._of_all = Average()
        # By line, which is a group and a class; the line served last comes last.
        self._of_lines: OrderedDict[Hashable, Average] = OrderedDict()
        # When each running task was claimed; the last claimed task last.
        self._running: dict[KeyT, float] = {}
        # How many tasks ran after each of the last claims.
        self._slots: deque[int] = deque(maxlen=SLOT_CLAIMS)

    def forget_before(self, then: float) -> None:
        """Forget running tasks that were claimed before a time in seconds."""
        while self._running and (first := next(iter(self._running.items())))[1] < then:
            del self._running[first[0]]

    def claimed(self, tasks: Iterable[KeyT], now: float) -> None:
        """Note that tasks were claimed at a time in seconds."""
        self._running.update(dict.fromkeys(tasks, now))
        self._slots.append(len(self._running))

    def ended(self, task: KeyT, line: Hashable, took_seconds: float) -> None:
        """Note how long a task of a line took."""
        self._running.pop(task, None)
        self._of_all.add(took_seconds)
        of_line = self._of_lines.setdefault(line, Average())
        of_line.add(took_seconds)
        self._of_lines.move_to_end(line)
        if len(self._of_lines) > MAX_LINES:
            self._of_lines.popitem(last=False)

    def slots(self, limit: int) -> int:
        """Return how many tasks are served at the same time, after a claim of up to `limit`."""
        return max(limit, *self._slots, 1)

    def times(self, line: Hashable, slots: int) -> LineTimes:
        """Return how long services take for the tasks of a line, given the number of slots.

        They are those of the whole queue, unless the line clearly differs.
        """
        if self._of_all.count < MIN_TIMES:
            return UNKNOWN
        of_line = self._of_lines.get(line)
        if of_line is not None and of_line.count >= MIN_TIMES and of_line.differs_from(self._of_all):
            return of_line.times(slots)
        return self._of_all.times(slots)
