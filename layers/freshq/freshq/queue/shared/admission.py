"""What is let into a queue: the door before a put, and the bound on what waits."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING, Final

from freshq.errors import Overloaded
from freshq.model.task import TaskStatus
from freshq.policy.pressure import Pressure, assess
from freshq.policy.shedding import ShedReason, Victim, WhenFull
from freshq.stores.base import ConflictError, Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from freshq.model.lifecycle import Lifecycle
    from freshq.model.task import Task
    from freshq.policy.rules import OverloadRules
    from freshq.policy.shedding import BacklogLimit
    from freshq.queue.shared.flow import FlowMeter
    from freshq.stores.base import Store

logger = logging.getLogger(__name__)

# The door looks at the queue so often in a deadline, but at least every second.
DOOR_LOOKS: Final = 10
LONGEST_LOOK_SECONDS: Final = 1.0
# What waits is counted anew after so long: others put and take too.
COUNT_SECONDS: Final = 1.0


class PressureGauge:
    """Tells how hard the queue is pressed."""

    def __init__(self, store: Store, queue: str, rules: OverloadRules, meter: FlowMeter) -> None:
        """Use the queue's store and counts."""
        self._store = store
        self._queue = queue
        self._deadline_seconds = rules.deadline_seconds
        self._meter = meter

    def pressure(self, now: float, uniform: float) -> Pressure:
        """Return how hard the queue is pressed.

        Args:
            now: Current time in seconds.
            uniform: A random number from [0, 1), for the jitter.

        Raises:
            StoreError: If the store did not answer.
        """
        oldest = self._store.oldest_created(self._queue, now - self._deadline_seconds)
        age_seconds = None if oldest is None else now - oldest
        return assess(self._meter.flow(now), age_seconds, self._deadline_seconds, uniform)


class AdmissionControl:
    """Refuses a share of the new tasks while the queue is overloaded. Thread-safe."""

    def __init__(self, gauge: PressureGauge, rules: OverloadRules, uniform: Callable[[], float]) -> None:
        """Start open.

        Args:
            gauge: Tells how hard the queue is pressed.
            rules: Have the door; without one nothing is ever refused.
            uniform: Draws a random number from [0, 1).
        """
        self._gauge = gauge
        self._door = rules.door
        self._look_seconds = min(LONGEST_LOOK_SECONDS, rules.deadline_seconds / DOOR_LOOKS)
        self._uniform = uniform
        self._lock = threading.Lock()
        self._next_look = 0.0
        self._refusal = 0.0
        self._pressure: Pressure | None = None

    def rejection(self, task: Task, now: float) -> Overloaded | None:
        """Return why a task is not let in; None if it is."""
        if self._door is None:
            return None
        with self._lock:
            if now >= self._next_look:
                self._pressure = self._gauge.pressure(now, 0.5)
                self._refusal = self._door.refusal_probability(self._pressure)
                self._next_look = now + self._look_seconds
        if self._pressure is None or self._uniform() >= self._refusal:
            return None
        # The pressure's own time has no jitter here: each refused task gets one of its own.
        retry_after_seconds = (self._pressure.retry_after_seconds or 0.0) * (0.5 + self._uniform())
        return Overloaded(task.task_id, ShedReason.DOOR, retry_after_seconds)


class BacklogBound:
    """Keeps the backlog within its bound. Thread-safe.

    One process keeps it exactly; of several, each may exceed it by what it puts within a second.
    """

    def __init__(
        self, store: Store, queue: str, rules: OverloadRules, lifecycle: Lifecycle, meter: FlowMeter
    ) -> None:
        """Use the queue's store, rules and counts."""
        self._store = store
        self._queue = queue
        self._limit = rules.backlog
        self._deadline_seconds = rules.deadline_seconds
        self._lifecycle = lifecycle
        self._meter = meter
        self._lock = threading.Lock()
        self._room = 0
        self._counted_at = 0.0

    def rejections(self, tasks: Sequence[Task], now: float) -> list[Overloaded | None]:
        """Return which of the tasks are one too many, where the newest give way."""
        limit = self._limit
        if limit is None or limit.when_full is not WhenFull.REFUSE_NEWEST:
            return [None] * len(tasks)
        with self._lock:
            if self._has_room(len(tasks), now):
                self._room -= len(tasks)
                return [None] * len(tasks)
            waiting = self._count(limit, len(tasks), now)
            return self._refused_of(tasks, limit, waiting, now)

    def _refused_of(
        self, tasks: Sequence[Task], limit: BacklogLimit, waiting: Counter[str | None], now: float
    ) -> list[Overloaded | None]:
        rejections: list[Overloaded | None] = []
        for task in tasks:
            waiting[task.group] += 1
            eviction = limit.eviction(waiting.total(), waiting)
            refused = None
            if eviction is not None and eviction.victim is Victim.OLDEST_OF_GROUP:
                self._evict(1, [eviction.group], eviction.reason, now)
                waiting[eviction.group] -= 1
            elif eviction is not None:
                waiting[task.group] -= 1
                refused = Overloaded(task.task_id, eviction.reason, self._deadline_seconds / 10)
            rejections.append(refused)
        self._room = max(0, limit.max_waiting - waiting.total())
        return rejections

    def make_room(self, count: int, now: float) -> None:
        """Let older tasks give way to those that were just put, where the oldest do.

        Raises:
            StoreError: If the store did not answer.
        """
        limit = self._limit
        if limit is None or limit.when_full is not WhenFull.DROP_OLDEST or not count:
            return
        with self._lock:
            if self._has_room(count, now):
                self._room -= count
                return
            waiting = self._count(limit, count, now)
            oldest, of_group = 0, Counter[str | None]()
            while (eviction := limit.eviction(waiting.total() - oldest, waiting)) is not None:
                if eviction.victim is Victim.OLDEST_OF_GROUP:
                    of_group[eviction.group] += 1
                    waiting[eviction.group] -= 1
                else:
                    oldest += 1
            for group, excess in of_group.items():
                self._evict(excess, [group], ShedReason.GROUP, now)
            self._evict(oldest, None, ShedReason.OVERFLOW, now)
            self._room = max(0, limit.max_waiting - (waiting.total() - oldest))

    def _has_room(self, count: int, now: float) -> bool:
        return self._room >= count and now - self._counted_at < COUNT_SECONDS

    def _count(self, limit: BacklogLimit, more: int, now: float) -> Counter[str | None]:
        self._counted_at = now
        created_after = now - self._deadline_seconds
        return Counter(self._store.count_waiting(self._queue, created_after, limit.max_waiting + more))

    def _evict(self, count: int, groups: Sequence[str | None] | None, reason: ShedReason, now: float) -> None:
        """Shed the oldest tasks; one that somebody takes or changes meanwhile is no longer in the way."""
        if not count:
            return
        shed = 0
        for task in self._store.oldest_tasks(self._queue, now - self._deadline_seconds, count, groups):
            try:
                self._store.replace(
                    self._lifecycle.shed(task, now, reason),
                    Guard(TaskStatus.PENDING, request_token=task.request_token),
                )
                shed += 1
            except ConflictError:
                logger.debug("task %s changed while it was to give way", task.task_id)
        self._meter.turned_away(now, shed)
