"""The request of a claim, and the state that the claimers of one process share: orders and turns of lines.

A line is a group within a priority level; in a queue that serves by value, a class of values within a group.
Stores ask these objects while they look for tasks to claim;
`freshq.policy` makes the decisions. Orders and turns are thread-safe.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import ceil, inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self, TypeAlias

from typing_extensions import TypeVar, override

from freshq.model.forks import new_lock
from freshq.model.lifecycle import TOKEN_CHARS, ClaimMoment, new_token
from freshq.policy.fairness import LEAST_SECONDS, FairScheduler, GroupCosts
from freshq.policy.groups import GroupRules
from freshq.policy.order import Order, OrderPolicy
from freshq.policy.shedding import CLOCK_STEP_SECONDS
from freshq.policy.value import DEFAULT_COST, ServiceTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from freshq.model.task import Task
    from freshq.policy.groups import GroupRoom
    from freshq.policy.order import OrderSwitch
    from freshq.policy.value import LineTimes, Plan

# Keys of lines from the first up to, but without, the second.
Range: TypeAlias = tuple[str, str]
# When tasks were created, in seconds, by group.
Times: TypeAlias = dict[str | None, list[float]]
_Candidate = TypeVar("_Candidate")
# Number of running tasks whose turns are corrected when they are settled: more than a process has.
MAX_CHARGED: Final = 10_000
# Number of claims and ends of tasks that wait to be counted; older ones are forgotten.
MAX_UNCOUNTED: Final = 10_000
# In place of the key of a line: all lines of a queue.
ALL_LINES: Final = ""
# Sorts after the lines of every level, because keys begin with a digit.
END: Final = ":"
# A suffix that sorts between the key of a line and the next one, because a group has no NUL.
NEXT: Final = "\x01"
# Precedes the class of a line in its key.
CLASS: Final = "\x01"
CLASS_CHARS: Final = 4
# Parsed keys that a process keeps: every claim parses the keys of the lines that it asks.
LINES_CACHED: Final = 4096


class Line(NamedTuple):
    """The tasks that wait in one order.

    Attributes:
        level: Their priority level.
        group: Their group.
        of_class: The code of their `ValueClass`, in a queue that serves by value; otherwise empty.
    """

    level: int
    group: str | None = None
    of_class: str = ""

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return the line of a task."""
        return cls(task.priority, task.group, task.line_class or "")

    @property
    def key(self) -> str:
        """Its key; see `line_key`."""
        return line_key(self.level, self.group, self.of_class)


def line_key(level: int, group: str | None, of_class: str | None = None) -> str:
    """Return the key of a line: its level (one digit), its class if it has one, and its group.

    Keys sort by level, then by group. An additional `CLASS` tells a group that begins with it from a class.
    """
    if of_class:
        return f"{level}{CLASS}{of_class}{group or ''}"
    return f"{level}{CLASS}{group}" if group and group[0] == CLASS else f"{level}{group or ''}"


@lru_cache(maxsize=LINES_CACHED)
def parse_line(key: str) -> Line:
    """Return the line that has a key."""
    if key[1:2] != CLASS:
        return Line(int(key[0]), key[1:] or None)
    if key[2:3] == CLASS:
        return Line(int(key[0]), key[2:])
    end = 2 + CLASS_CHARS
    return Line(int(key[0]), key[end:] or None, key[2:end])


class Choice(NamedTuple):
    """The lines of one level from which a claim takes tasks.

    Attributes:
        lines: How many tasks to take of which lines at most: by key, in the order of turns.
        newest_first: From which end of the lines.
        limit: How many tasks to take at most in all.
        unless: Ranges of keys. If one has a line, nothing is taken: the chosen lines are not the best.
    """

    lines: Mapping[str, int]
    newest_first: bool
    limit: int
    unless: tuple[Range, ...] = ()


class LineOrders:
    """Which end of each line is served, under one order for all lines.

    Attributes:
        constant: Whether every line is served newest first; None if each switches by itself.
    """

    def __init__(self, order: Order, deadline_seconds: float) -> None:
        """Start with no line known.

        Args:
            order: Order of the queue.
            deadline_seconds: Age at which its tasks are stale.
        """
        self._order = order
        self.constant = None if order.switches else order.newest_first
        self._deadline_seconds = deadline_seconds
        self._lock = new_lock()
        self._policies: dict[Line, OrderPolicy] = {}
        # Lines whose oldest task is being read, without the lock.
        self._checking: set[Line] = set()
        self._switches: list[OrderSwitch] = []

    def newest_first(
        self,
        line: Line,
        now: float,
        oldest_created: Callable[[], float | None],
        first_to_expire: Callable[[], Iterable[tuple[float, float]]] = tuple,
    ) -> bool:
        """Return whether to serve the newest task of a line first.

        Args:
            line: The line.
            now: Current time in seconds.
            oldest_created: Reads when the oldest live task of the line was created; None if it is empty.
            first_to_expire: Reads when its live tasks with the nearest deadlines were created, and their
                deadlines.
        """
        if self.constant is not None:
            return self.constant
        with self._lock:
            policy = self._policies.get(line) or OrderPolicy(self._order, self._deadline_seconds)
            if now < policy.check_at or line in self._checking:
                return policy.newest_first
            self._checking.add(line)
        try:
            created, nearest = oldest_created(), first_to_expire()
            with self._lock:
                self._observe(line, policy, policy.observe(now, created, nearest))
        finally:
            with self._lock:
                self._checking.discard(line)
        return policy.newest_first

    def any_due(self, lines: Iterable[Line], now: float) -> bool:
        """Return whether it is time to check one of some lines; `now` in seconds."""
        with self._lock:
            known = [self._policies.get(line) for line in lines]
        return any(policy is None or now >= policy.check_at for policy in known)

    def _observe(self, line: Line, policy: OrderPolicy, switch: OrderSwitch | None) -> None:
        if switch is not None:
            self._switches.append(switch)
        if policy.unused:
            self._policies.pop(line, None)
        else:
            self._policies[line] = policy

    def take_switches(self) -> list[OrderSwitch]:
        """Return the order switches since the last call."""
        with self._lock:
            switches, self._switches = self._switches, []
        return switches


class LevelSchedulers:
    """A `FairScheduler` for each level: its groups share the workers' time, or units. Thread-safe."""

    def __init__(self, rules: GroupRules | None = None, costs: GroupCosts | None = None) -> None:
        self._rules = rules or GroupRules()
        # What the tasks of each group take, in seconds, and in what the groups share.
        self._seconds = GroupCosts()
        self._costs = self._seconds if costs is None else costs
        self._lock = new_lock()
        self._levels = self._new_levels()
        # The costs of the turns of running tasks, by task id; the last claimed task last.
        self._charged: dict[str, float] = {}
        # Claims and ends, as the method that counts them and its arguments, until a turn depends on them.
        # Most queues have one group, and never ask for a turn.
        self._uncounted: deque[tuple[Any, ...]] = deque(maxlen=MAX_UNCOUNTED)

    def _new_levels(self) -> defaultdict[int, FairScheduler]:
        return defaultdict(lambda: FairScheduler(self._costs, self._rules))

    def copy(self) -> LevelSchedulers:
        """Return an independent copy, for a peek."""
        copied = LevelSchedulers(self._rules, self._costs)
        with self._lock:
            self._count()
            copied._levels.update({level: scheduler.copy() for level, scheduler in self._levels.items()})
        return copied

    def follow(self, rules: GroupRules) -> None:
        """Use other rules from now on."""
        with self._lock:
            self._count()
            earlier, self._rules = self._rules, rules
            if rules.share != earlier.share:  # earlier costs have another unit
                self._costs = self._seconds if rules.share == "seconds" else GroupCosts(are_known=True)
                self._levels, self._charged = self._new_levels(), {}
            for scheduler in self._levels.values():
                scheduler.follow(rules)

    def claimed(self, tasks: Iterable[Task]) -> None:
        """Note the costs of the turns of claimed tasks, until they are settled."""
        charge = LevelSchedulers._charge
        self._uncounted.extend(
            [(charge, task.task_id, task.priority, task.group, task.cost) for task in tasks]
        )

    def settled(self, task: Task, took_seconds: float, units: float = DEFAULT_COST) -> None:
        """Replace the cost of a task's turn by the time, or the units, that its run took."""
        self._uncounted.append(
            (LevelSchedulers._correct, task.task_id, task.priority, task.group, took_seconds, units)
        )

    def returned(self, tasks: Iterable[Task]) -> None:
        """Return the costs of the turns of claimed tasks that do not run."""
        undo = LevelSchedulers._return
        self._uncounted.extend([(undo, task.task_id, task.priority, task.group) for task in tasks])

    def record(self, level: int, group: str | None, count: int) -> None:
        """Count turns that a group used while it was the only one with work."""
        if count:
            self._uncounted.append((LevelSchedulers._record, level, group, count))

    def _count(self) -> None:
        """Count the claims and ends that wait for it; the lock must be held."""
        while self._uncounted:
            count, *arguments = self._uncounted.popleft()
            count(self, *arguments)

    def _charge(self, task_id: str, level: int, group: str | None, cost: float | None) -> None:
        charged = self._costs[group]
        if self._rules.share == "units":  # the cost of the task is known, unlike its time
            units = max(DEFAULT_COST if cost is None else cost, LEAST_SECONDS)
            if not self._costs:  # credit is a number of average turns, which have no average yet
                self._costs.observe(group, units)
                self._levels = self._new_levels()
                self._levels[level].record(group)
                charged = self._costs[group]
            self._levels[level].correct(group, charged, units)
            charged = units
        self._charged[task_id] = charged
        if len(self._charged) > MAX_CHARGED:
            del self._charged[next(iter(self._charged))]

    def _correct(
        self, task_id: str, level: int, group: str | None, took_seconds: float, units: float
    ) -> None:
        charged = self._charged.pop(task_id, None)
        if charged is None:  # another process claimed it
            charged = self._costs[group]
        took = took_seconds
        if self._rules.share == "units":
            took = units
            self._seconds.observe(group, took_seconds)
        self._levels[level].correct(group, charged, took)
        self._costs.observe(group, took)

    def _return(self, task_id: str, level: int, group: str | None) -> None:
        if (charged := self._charged.pop(task_id, None)) is not None:
            self._levels[level].correct(group, charged, 0.0)

    def _record(self, level: int, group: str | None, count: int) -> None:
        for _ in range(count):
            self._levels[level].record(group)

    def seconds_of(self, group: str | None) -> float:
        """Return the average time of the tasks of a group that this process saw; if none, of all tasks."""
        with self._lock:
            self._count()
            return self._seconds[group]

    def plan(self, level: int, groups: Sequence[str | None], count: int) -> dict[str | None, int]:
        """Return how many of the next turns of a level each group gets; see `FairScheduler.plan`."""
        with self._lock:
            self._count()
            return self._levels[level].plan(groups, count)

    def interleave(
        self,
        level: int,
        lines: Mapping[str | None, Iterator[_Candidate]],
        room: GroupRoom | None = None,
    ) -> Iterator[_Candidate]:
        """Yield the candidates of a level in the order of turns; within a group in its own order.

        Args:
            level: The priority level.
            lines: The candidates of each group that may have work, best first.
            room: The limits of groups and kinds: tasks at a limit are left out. None: no limits.
        """
        working = dict(lines)
        while working:
            group = next(iter(working)) if len(working) == 1 else self._next_group(level, working)
            allowed = room is None or room.allows(group)
            candidate = next(working[group], None) if allowed else None
            if candidate is None:
                del working[group]
                continue
            if room is not None and not _starts(group, candidate, room):
                continue
            self.record(level, group, 1)
            yield candidate

    def _next_group(self, level: int, groups: Collection[str | None]) -> str | None:
        with self._lock:
            self._count()
            return self._levels[level].next_group(groups)


def _starts(group: str | None, candidate: object, room: GroupRoom) -> bool:
    """Count a task of a group that starts; return False if its kind has no room."""
    task = getattr(candidate, "task", None)  # a store that counts later shows no task
    if task is None:
        room.start(group)
        return True
    if room.allows_kind(task.kind):
        room.start(group, task.units, task.kind)
        return True
    room.passed_over = True
    return False


class ServiceMeter:
    """The `ServiceTimes` of a queue, from the claims and ends of one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._times = ServiceTimes[str]()

    def claimed(self, tasks: Iterable[Task], now: float, lease_seconds: float) -> None:
        """Note that tasks were claimed at a time in seconds; forget those whose lease has ended since."""
        with self._lock:
            self._times.forget_before(now - lease_seconds)
            self._times.claimed([task.task_id for task in tasks], now)

    def ended(self, task: Task, took_seconds: float) -> None:
        """Note how long a task took."""
        with self._lock:
            self._times.ended(task.task_id, (task.group, task.line_class or ""), took_seconds)

    def slots(self, limit: int) -> int:
        """Return how many tasks are served at the same time, after a claim of up to `limit`."""
        with self._lock:
            return self._times.slots(limit)

    def times(self, line: Line, slots: int) -> LineTimes:
        """Return how long services take for the tasks of a line, given the number of slots."""
        with self._lock:
            return self._times.times((line.group, line.of_class), slots)


class NewPlan(NamedTuple):
    """The plan of a claim.

    Attributes:
        kind: Its class.
        slots: How many tasks are served at the same time.
        meter: Knows the service times of each line.
    """

    kind: type[Plan]
    slots: int
    meter: ServiceMeter


@dataclass(slots=True)
class ClaimRequest:
    """A request for tasks to work on.

    Not frozen, because a frozen dataclass sets each field by a call.

    Attributes:
        queue: Name of the queue.
        orders: Decides which end of each line is served.
        schedulers: Decide which group of a level is served next.
        groups: The rules of groups, with their limits.
        limit: Maximum number of tasks.
        token: A new lease token, for a store that takes all tasks by one write.
        clock: Returns the time in seconds since the epoch, to the microsecond.
        lease_seconds: Length of the leases.
        max_age_seconds: Age at which a task of the queue is stale.
        reserve_seconds: Time that a task must have left before its deadline.
        retention_seconds: How long the store keeps an ended task.
        longest_wait_seconds: Tasks that waited longer are passed over, stale or not; infinite: none.
        room: The room that the limits of groups leave, for stores that do not count by group.
        plan: Plans what to serve of the lines of a group; None if `orders` decides.
        room_in_seconds: When the rates of groups leave room for a task that they held back; infinite if they
            held back none. The search sets it.
        search_incomplete: Whether the last search reached a bound of its work before it had searched every
            line; the search sets it.
        saw_no_line: Whether the last search found no line, or took all that its lines had, so that nothing
            waits; the search sets it.
    """

    queue: str
    orders: LineOrders
    schedulers: LevelSchedulers
    groups: GroupRules
    limit: int
    token: str
    clock: Callable[[], float]
    lease_seconds: float
    max_age_seconds: float
    reserve_seconds: float
    retention_seconds: float
    longest_wait_seconds: float = inf
    room: GroupRoom | None = None
    plan: NewPlan | None = None
    room_in_seconds: float = inf
    search_incomplete: bool = False
    saw_no_line: bool = False

    @property
    def passes_over(self) -> bool:
        """Whether the claim passes over tasks that are not stale."""
        return self.longest_wait_seconds < inf

    def tokens(self, count: int) -> list[str]:
        """Return new lease tokens, for a store that takes each task by its own write."""
        worker = self.token[:-TOKEN_CHARS]
        return [worker + new_token() for _ in range(count)]

    def moment(self) -> ClaimMoment:
        """Return the times of a claim that is made now.

        A store asks for them right before each write that takes tasks: a lease counts from its write,
        however long the claim has been under way.
        """
        now = self.clock()
        lease_until = round((now + self.lease_seconds) * 1e6) / 1e6
        # A lease, and any deadline that a claimed task can have, end before this.
        useful_until = max(lease_until, now + self.max_age_seconds)
        return ClaimMoment(
            now=now,
            created_after=max(
                now - self.max_age_seconds + self.reserve_seconds,
                now - self.longest_wait_seconds - CLOCK_STEP_SECONDS,
            ),
            deadline_after=now + self.reserve_seconds,
            lease_until=lease_until,
            expires=ceil(useful_until + self.retention_seconds),
        )


class Stored(NamedTuple):
    """A task as read from the store.

    Attributes:
        task: The task. If its payload cannot be decoded, the payload is the stored text.
        problem: Why the payload cannot be decoded; None if it can.
    """

    task: Task
    problem: str | None

    @property
    def task_id(self) -> str:
        """The id of the task."""
        return self.task.task_id


class Head(NamedTuple):
    """A waiting task near the head of its line.

    Attributes:
        task_id: Its id.
        created: When it was created, in seconds.
        deadline: Its deadline in seconds; None if it has none.
    """

    task_id: str
    created: float
    deadline: float | None


class Candidate(Protocol):
    """A task that a claim may take, as a store's lines show it."""

    @property
    def task_id(self) -> str:
        """Its id."""


Found = TypeVar("Found", bound=Candidate, default=Stored)


class WaitingReader(Protocol):
    """Reads the live tasks in the lines of a queue, each named by its key.

    It does not read `ALL_LINES` one by one, but tasks of the queue with the nearest or the latest deadlines.

    Attributes:
        by_deadline: Whether tasks have an order by their deadlines; if not, it cannot read all lines at once.
    """

    by_deadline: bool = True

    def lines(self, after: str, until: str, count: int) -> list[str]:
        """Return the keys of the first `count` lines with tasks that follow a key and precede another."""

    def count(self, key: str, now: float, created_after: float, at_most: int) -> dict[str | None, int]:
        """Return the number of tasks by group, counting little more than `at_most`."""

    def newest(self, key: str, now: float, created_after: float, count: int) -> Times:
        """Return when the `count` newest tasks of a line were created; of all lines, some more."""

    def oldest(self, key: str, now: float, created_after: float, count: int) -> Iterable[tuple[float, str]]:
        """Return when the `count` oldest tasks were created, and their ids: of the lowest level first."""

    def oldest_created(self, key: str, now: float, created_after: float) -> float | None:
        """Return when the oldest task was created; None if none was found."""
        return next((created for created, _id in self.oldest(key, now, created_after, 1)), None)

    def first_to_expire(self, key: str, now: float, created_after: float) -> list[tuple[float, float]]:
        """Return when the tasks of a line were created, and their deadlines: of the queue's nearest ones."""

    def expiring(self, now: float, created_after: float, until: float) -> list[float]:
        """Return when some tasks of all lines were created that are stale at `until`, in seconds."""

    def listed(self, task_ids: Sequence[str]) -> list[Task]:
        """Return those of some tasks that wait in a line, in the order of their ids."""


class LineReader(WaitingReader, Protocol[Found]):
    """Reads the lines of a queue for a claim.

    Attributes:
        more_lines: How many lines a claim sees beyond a window, because finding lines costs nothing.
    """

    more_lines: int = 0

    def last_line(self, until: str) -> str | None:
        """Return the key of the last line with tasks that precedes a key; None if there is none."""

    def begin(self, after: str, until: str) -> str:
        """Return the key after which a process first looks for lines between two keys, if they are many."""
        return after

    def searches(self, key: str) -> bool:
        """Return whether to look into a line; a store that bills each look bounds those in vain."""
        return True

    def page(
        self, key: str, moment: ClaimMoment, count: int, looked: int, *, newest_first: bool
    ) -> Iterable[Found]:
        """Return the first `count` live tasks of a line, best first, among those that it finds first.

        A store whose reads have a size of their own may return more, and leave out what it returned before.

        Args:
            key: The line.
            moment: Says which tasks are live.
            count: Number of tasks.
            looked: How many tasks of the line to look at, if looking at stale ones costs something.
            newest_first: The order.
        """

    def heads(self, key: str, moment: ClaimMoment, count: int, *, newest_first: bool) -> Sequence[Any]:
        """Return the live tasks among the first `count` of a line, with what a plan needs to know of them."""

    def found(self, heads: Sequence[Any]) -> Iterable[Found]:
        """Return those of the tasks that `heads` returned which may still be claimed, in the same order."""

    def tasks(self, found: Iterable[Found], count: int) -> list[Task]:
        """Return the tasks of the first `count` candidates that are claimable."""


class LimitedLines(LineReader[Stored], Protocol):
    """Reads lines, takes their tasks, and counts what runs, while no other claim takes the same tasks.

    In a claim within limits, no other claim of the queue counts or takes.

    Attributes:
        full_kinds: The kinds whose tasks it leaves out, as they have no room.
    """

    full_kinds: Collection[str] = ()

    @override
    def tasks(self, found: Iterable[Stored], count: int) -> list[Task]:
        return [each.task for each in islice((each for each in found if not each.problem), count)]

    def take(self, found: Sequence[Stored], moment: ClaimMoment) -> list[Stored]:
        """Take those of the tasks on the pages that are still live; return them as claimed."""

    def running(self, names: Collection[str]) -> Mapping[str, int]:
        """Return the number of running tasks of groups; groups with none may be left out."""

    def running_below(self, name: str, separator: str) -> int:
        """Return the number of running tasks of a group and of the groups below it."""

    def running_by_group(self) -> Mapping[str, int]:
        """Return the number of running tasks of each group that has any."""

    def starts(self) -> Mapping[str, Any]:
        """Return the recent starts of groups, and their units, as they were kept."""

    def keep_starts(self, values: Mapping[str, Any]) -> None:
        """Keep the recent starts of groups, and their units."""
