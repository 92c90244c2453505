"""Decide together with the other processes of a queue which tasks are turned away or shed."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final

from freshq.errors import Overloaded
from freshq.model.forks import new_lock
from freshq.model.task import TaskStatus
from freshq.policy.backlog_limit import CountedBacklog, Victim, WhenFull
from freshq.policy.pressure import LONGEST_SPREAD_SECONDS, AdmissionPolicy
from freshq.policy.shedding import ShedReason
from freshq.queue.reading import count_waiting, oldest_tasks
from freshq.stores.base import Guard
from freshq.stores.lines import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from freshq.model.lifecycle import Lifecycle
    from freshq.model.task import Task
    from freshq.policy.backlog_limit import BacklogLimit, Eviction
    from freshq.policy.pressure import AdmissionLimit
    from freshq.policy.shedding import Codel
    from freshq.queue.shared.measures import FlowMeter
    from freshq.stores.base import Store

logger = logging.getLogger(__name__)
# How long a count of the waiting tasks is used, while other processes also put and claim.
COUNT_SECONDS: Final = 1.0
# Number of times that a rejected task may be put again before it would be stale.
RETRIES_PER_LIFE: Final = 10
# Lines whose CoDel a process keeps, in about 2 MB. Any other line begins anew, and at first sheds nothing.
MAX_CODEL_LINES: Final = 10_000


class AdmissionControl:
    """Rejects a share of the new tasks while the queue is overloaded. Thread-safe.

    One thread at a time measures the pressure; other threads use the last measurement rather than wait.
    """

    def __init__(
        self, meter: FlowMeter, limit: AdmissionLimit, deadline_seconds: float, uniform: Callable[[], float]
    ) -> None:
        """Start open.

        Args:
            meter: Measures the flow.
            limit: The rule.
            deadline_seconds: Age at which tasks of the queue are stale.
            uniform: Draws a random number from [0, 1).
        """
        self._meter = meter
        self._policy = AdmissionPolicy(limit, deadline_seconds)
        self._uniform = uniform
        self._checking = new_lock()

    def rejections(
        self, tasks: Sequence[Task], late: Sequence[Overloaded | None], now: float
    ) -> list[Overloaded | None]:
        """Return the rejection of each task, None if it is admitted; `late` tasks are already rejected.

        Raises:
            StoreError: If the pressure could not be measured. The next call tries again.
        """
        pairs = zip(late, tasks, strict=True)
        return [rejected or self._rejection(task, now) for rejected, task in pairs]

    def _rejection(self, task: Task, now: float) -> Overloaded | None:
        policy = self._policy
        if now >= policy.check_at and self._checking.acquire(blocking=False):
            try:
                policy.observe(now, *self._meter.measure(now))
            finally:
                self._checking.release()
        life_seconds = task.stale_at - task.created
        value = task.worth if self._meter.counts_values else None
        retry_after_seconds = policy.rejects(task.group, self._uniform, life_seconds, value)
        if retry_after_seconds is None:
            return None
        price = 0.0 if value is None else policy.price
        return Overloaded(task.task_id, ShedReason.ADMISSION, retry_after_seconds, least_value=price)


class BacklogBound:
    """Rejects new tasks, or evicts old ones, when the backlog is full. Thread-safe.

    A single producer never exceeds the bound. Each of several producers may exceed it by the tasks that it
    puts within `COUNT_SECONDS`. The lock protects only the counts: no store call is made under it.
    """

    def __init__(
        self,
        store: Store,
        queue: str,
        limit: BacklogLimit,
        deadline_seconds: float,
        lifecycle: Lifecycle,
        meter: FlowMeter,
        seconds_of: Callable[[str | None], float],
    ) -> None:
        """Start with nothing counted.

        Args:
            store: Home of the tasks.
            queue: Name of the queue.
            limit: The rule.
            deadline_seconds: Age at which tasks of the queue are stale.
            lifecycle: Computes the shed version of a task.
            meter: Counts the shed tasks.
            seconds_of: Returns the average time of a group's tasks.
        """
        self._seconds_of = seconds_of
        self._store = store
        self._queue = queue
        self._limit = limit
        self._deadline_seconds = deadline_seconds
        self._lifecycle = lifecycle
        self._meter = meter
        self._lock = new_lock()
        self._room = 0
        self._counted_at = 0.0
        self._admitted = 0  # in total; shows what other threads admitted during a count
        self._making_room = False

    def rejections(self, tasks: Sequence[Task], now: float) -> list[Overloaded | None]:
        """Return an error for each task that does not fit, if the rule rejects the newest.

        Raises:
            StoreError: If the store did not answer.
        """
        limit = self._limit
        if limit.when_full is not WhenFull.REFUSE_NEWEST:
            return [None] * len(tasks)
        with self._lock:
            if self._take_room(len(tasks), now):
                return [None] * len(tasks)
            before = self._admitted
        waiting = self._count(limit, len(tasks), now)
        with self._lock:
            backlog = CountedBacklog(limit, waiting, self._admitted - before, self._seconds_of)
            evictions = [backlog.admit(task.group) for task in tasks]
            rejected = [
                eviction if eviction is not None and eviction.victim is Victim.NEWCOMER else None
                for eviction in evictions
            ]
            self._admitted += rejected.count(None)
            self._room, self._counted_at = backlog.room, now
        self._evict(filter(None, evictions), now)
        return [
            None if eviction is None else self._overloaded(task, eviction)
            for task, eviction in zip(tasks, rejected, strict=True)
        ]

    def _overloaded(self, task: Task, eviction: Eviction) -> Overloaded:
        life_seconds = min(self._deadline_seconds, task.stale_at - task.created)
        return Overloaded(
            task.task_id, eviction.reason, min(life_seconds, LONGEST_SPREAD_SECONDS) / RETRIES_PER_LIFE
        )

    def make_room(self, count: int, now: float, *, alone: bool = False) -> None:
        """Evict old tasks for `count` new tasks, if the rule drops the oldest.

        One thread at a time counts and evicts, so that only the excess is evicted.

        Args:
            count: Number of new tasks.
            now: Current time in seconds.
            alone: Whether no other thread can see the new tasks, because their transaction is open.

        Raises:
            StoreError: If the store did not answer.
        """
        limit = self._limit
        if limit.when_full is not WhenFull.DROP_OLDEST or not count:
            return
        with self._lock:
            if self._take_room(count, now):
                return
            self._admitted += count
            if self._making_room and not alone:
                return  # the other thread sees `_admitted` and counts again
            self._making_room = True
        excess = count
        try:
            while excess:
                excess = self._evict_excess(limit, excess, now)
        except BaseException:
            self._making_room = False
            raise

    def _evict_excess(self, limit: BacklogLimit, more: int, now: float) -> int:
        """Count and evict once; return how many of the tasks put in between still exceed the limit."""
        before = self._admitted
        backlog = CountedBacklog(limit, self._count(limit, more, now), seconds_of=self._seconds_of)
        self._evict(backlog.excess(), now)
        with self._lock:
            room = backlog.room - (self._admitted - before)
            self._room, self._counted_at = max(0, room), now
            self._making_room = room < 0
            return max(0, -room)

    def _take_room(self, count: int, now: float) -> bool:
        if self._room < count or now - self._counted_at >= COUNT_SECONDS:
            return False
        self._room -= count
        self._admitted += count
        return True

    def _count(self, limit: BacklogLimit, more: int, now: float) -> dict[str | None, int]:
        created_after = now - self._deadline_seconds
        return count_waiting(self._store, self._queue, now, created_after, limit.max_waiting + more)

    def _evict(self, evictions: Iterable[Eviction], now: float) -> None:
        """Shed the oldest tasks; stale, claimed or changed tasks need no eviction."""
        for eviction, count in Counter(evictions).items():
            if eviction.victim is Victim.NEWCOMER:
                continue
            groups = [eviction.group] if eviction.victim is Victim.OLDEST_OF_GROUP else None
            created_after = now - self._deadline_seconds
            plans = self._lifecycle.config.order.plans
            oldest = oldest_tasks(
                self._store, self._queue, now, created_after, count, groups, has_classes=plans
            )
            waiting = [task for task in oldest if task.status_at(now) is TaskStatus.PENDING]
            changes = [
                (self._lifecycle.shed(task, now, eviction.reason), Guard.unchanged(task)) for task in waiting
            ]
            # A task whose row is locked is being claimed or evicted: nothing waits for it.
            shed = 0
            for task, stored in zip(waiting, self._store.replace_many(changes), strict=True):
                if stored is None:
                    logger.debug("task %s changed before it could be evicted", task.task_id)
                else:
                    shed += 1
            if shed:
                self._meter.shed_early(now, eviction.reason, shed)


class LineCodel:
    """Decides by CoDel which tasks to shed instead of running them. Thread-safe.

    Only first attempts are shed: a retried task is old for other reasons than a slow queue.
    """

    def __init__(self, new_codel: Callable[[], Codel]) -> None:
        """Start with no line seen.

        Args:
            new_codel: Makes the CoDel of one line.
        """
        self._new_codel = new_codel
        self._lock = new_lock()
        self._lines: OrderedDict[Line, Codel] = OrderedDict()

    @property
    def has_one_line(self) -> bool:
        """Whether all claims so far were from one line."""
        with self._lock:
            return len(self._lines) == 1

    def sheds(self, task: Task, now: float) -> bool:
        """Return whether to shed a task that was claimed at `now` (seconds)."""
        if task.attempts > 1:
            return False
        line = Line(task.priority, task.group)
        with self._lock:
            return self._codel_of(line).sheds(now, now - task.created)

    def _codel_of(self, line: Line) -> Codel:
        """Return the CoDel of a line; if there are too many, forget the line that was served longest ago."""
        codel = self._lines.get(line)
        if codel is None:
            codel = self._lines[line] = self._new_codel()
        self._lines.move_to_end(line)
        if len(self._lines) > MAX_CODEL_LINES:
            self._lines.popitem(last=False)
        return codel

    def sheds_behind(self, task: Task, now: float) -> bool:
        """Return whether to shed a task that waits in a line where a task was shed at `now` (seconds)."""
        with self._lock:
            codel = self._codel_of(Line(task.priority, task.group))
        return task.attempts == 0 and codel.sheds_behind(now, now - task.created)
