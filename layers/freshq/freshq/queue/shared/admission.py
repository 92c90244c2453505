"""Admission control: rejects new tasks by load, before they are written."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from freshq.errors import Overloaded
from freshq.policy.pressure import Pressure, assess
from freshq.policy.shedding import ShedReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.model.task import Task
    from freshq.policy.rules import OverloadRules
    from freshq.queue.shared.flow import FlowMeter
    from freshq.stores.base import Store

# The door looks at the queue so often in a deadline, but at least every second.
DOOR_LOOKS: Final = 10
LONGEST_LOOK_SECONDS: Final = 1.0


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
