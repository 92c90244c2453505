"""The flow of a queue, counted by all its processes together."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from typing import TYPE_CHECKING, Final

from freshq.errors import StoreError
from freshq.policy.flow import FlowCounter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from freshq.model.task import Task
    from freshq.policy.flow import Flow
    from freshq.policy.rules import OverloadRules
    from freshq.policy.shedding import ShedReason
    from freshq.stores.base import Store

logger = logging.getLogger(__name__)

# How often a process writes its counts, whatever goes through it: every 5 s in a window of 60 s.
FLUSHES_PER_WINDOW: Final = 12
# Counts are read until the end of the next window, and kept this much longer.
KEPT_SECONDS: Final = 60
REFUSED: Final = "refused"


class FlowMeter:
    """Counts tasks in memory, and adds the counts to the queue's at intervals. Thread-safe.

    A crash loses what was counted since the last flush: these are rates. The numbers of tasks in each
    state come from the tasks themselves.
    """

    def __init__(self, store: Store, queue: str, rules: OverloadRules) -> None:
        """Start with nothing counted.

        Args:
            store: Where the counts are kept.
            queue: Name of the queue.
            rules: Its overload control. Only a door needs the counts of groups.
        """
        self._store = store
        self._queue = queue
        self._lock = threading.Lock()
        self._counter = FlowCounter(rules.deadline_seconds)
        self._counts_groups = rules.door is not None
        self._flush_seconds = self._counter.window_seconds / FLUSHES_PER_WINDOW
        self._turned_away: Counter[str] = Counter()
        self._flushed_at: float | None = None

    @property
    def is_unused(self) -> bool:
        """Whether nothing was counted yet."""
        return self._flushed_at is None

    def offered(self, now: float, tasks: Sequence[Task]) -> None:
        """Count tasks that were put, including those turned away."""
        with self._lock:
            self._counter.offered(now, len(tasks))
            if self._counts_groups:
                for task in tasks:
                    self._counter.offered_by(task.group, now)
        self._flush_if_due(now)

    def served(self, now: float, *, in_time: bool) -> None:
        """Count a task that was done."""
        with self._lock:
            self._counter.served(now, in_time=in_time)
        self._flush_if_due(now)

    def shed_early(self, now: float, count: int) -> None:
        """Count tasks that were shed before their deadline."""
        with self._lock:
            self._counter.shed_early(now, count)
        self._flush_if_due(now)

    def turned_away(self, now: float, reason: ShedReason, count: int) -> None:
        """Count tasks that admission control rejected."""
        with self._lock:
            self._turned_away[reason.value] += count
        self._flush_if_due(now)

    def _flush_if_due(self, now: float) -> None:
        if self._flushed_at is None:
            self._flushed_at = now
        if now - self._flushed_at >= self._flush_seconds:
            self.flush(now)

    def flush(self, now: float) -> None:
        """Add what was counted to the queue's counts; what cannot be written is kept for the next time."""
        with self._lock:
            windows = self._counter.take()
            turned_away, self._turned_away = self._turned_away, Counter()
            self._flushed_at = now
        if turned_away and not self._written(REFUSED, turned_away, None):
            with self._lock:
                self._turned_away.update(turned_away)
        for number, counts in windows.items():
            expires = math.ceil((number + 2) * self._counter.window_seconds) + KEPT_SECONDS
            if not self._written(_record(number), counts, expires):
                with self._lock:
                    self._counter.counts(number).update(counts)

    def _written(self, name: str, counts: Mapping[str, int], expires: int | None) -> bool:
        try:
            self._store.add_counts(self._queue, name, counts, expires)
        except StoreError:
            logger.warning("queue %r: could not write the flow counts", self._queue, exc_info=True)
            return False
        return True

    def flow(self, now: float) -> Flow:
        """Return what went through the queue lately.

        Raises:
            StoreError: If the store did not answer.
        """
        self.flush(now)
        number = self._counter.window(now)
        current, before = (
            self._store.read_counts(self._queue, _record(window)) for window in (number, number - 1)
        )
        return self._counter.between(now, current, before)


def _record(window: int) -> str:
    return f"flow-{window}"
