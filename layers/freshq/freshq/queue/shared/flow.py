"""How much is offered to a queue and served by it, counted by all its processes together."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from freshq.errors import StoreError
from freshq.policy.pressure import Flow, flow_between, flow_window_seconds

if TYPE_CHECKING:
    from freshq.policy.shedding import ShedReason
    from freshq.stores.base import Store

logger = logging.getLogger(__name__)

# A process writes its counts so often in a window, whatever goes through it: every 5 s in one of 60 s.
FLUSHES_PER_WINDOW: Final = 12
REFUSED: Final = "refused"


class FlowMeter:
    """Counts tasks in memory, and adds them to the queue's counts now and then. Thread-safe.

    What was counted since the last time before a crash is lost: these are rates. The numbers of tasks
    in each state come from the tasks themselves.
    """

    def __init__(self, store: Store, queue: str, deadline_seconds: float, now: float) -> None:
        """Count nothing yet.

        Args:
            store: Where the counts are kept.
            queue: Name of the queue.
            deadline_seconds: Age at which its tasks are stale.
            now: Current time in seconds.
        """
        self.window_seconds = flow_window_seconds(deadline_seconds)
        self._store = store
        self._queue = queue
        self._lock = threading.Lock()
        # By the record that they go to, and when that lapses.
        self._counted: defaultdict[tuple[str, int | None], Counter[str]] = defaultdict(Counter)
        self._flushed_at = now

    def offered(self, now: float, count: int) -> None:
        """Count tasks that were to be put, the refused ones included."""
        self._add(now, {"offered": count})

    def served(self, now: float, *, in_time: bool) -> None:
        """Count a task that was done."""
        self._add(now, {"served": 1, "served_in_time": int(in_time)})

    def turned_away(self, now: float, count: int) -> None:
        """Count waiting tasks that were given up for another reason than their age."""
        self._add(now, {"turned_away": count})

    def refused(self, now: float, reason: ShedReason, count: int) -> None:
        """Count tasks that were refused before they were put."""
        with self._lock:
            self._counted[REFUSED, None][reason.value] += count
        self._flush_if_due(now)

    def _add(self, now: float, counts: dict[str, int]) -> None:
        number = math.floor(now / self.window_seconds)
        # Read until the end of the next window.
        lapses = math.ceil((number + 2) * self.window_seconds) + 60
        with self._lock:
            counted = self._counted[_window(number), lapses]
            for name, count in counts.items():
                counted[name] += count
        self._flush_if_due(now)

    def _flush_if_due(self, now: float) -> None:
        if now - self._flushed_at >= self.window_seconds / FLUSHES_PER_WINDOW:
            self.flush(now)

    def flush(self, now: float) -> None:
        """Add what was counted to the queue's counts; what cannot be written is kept for the next time."""
        with self._lock:
            counted, self._counted = self._counted, defaultdict(Counter)
            self._flushed_at = now
        for (name, lapses), counts in counted.items():
            try:
                self._store.add_counts(self._queue, name, counts, lapses)
            except StoreError:
                logger.warning("counts of queue %r were not written", self._queue, exc_info=True)
                with self._lock:
                    self._counted[name, lapses].update(counts)

    def flow(self, now: float) -> Flow:
        """Return what went through the queue lately.

        Raises:
            StoreError: If the store did not answer.
        """
        self.flush(now)
        number = math.floor(now / self.window_seconds)
        current, before = (
            self._store.read_counts(self._queue, _window(window)) for window in (number, number - 1)
        )
        return flow_between(self.window_seconds, now - number * self.window_seconds, current, before)


def _window(number: int) -> str:
    return f"flow-{number}"
