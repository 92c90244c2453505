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

# How often the door measures the pressure: this often per deadline, and at least every second.
DOOR_LOOKS: Final = 10
LONGEST_LOOK_SECONDS: Final = 1.0


class PressureGauge:
    """Measures the pressure on a queue."""

    def __init__(self, store: Store, queue: str, rules: OverloadRules, meter: FlowMeter) -> None:
        """Use the store and the flow counts of the queue."""
        self._store = store
        self._queue = queue
        self._deadline_seconds = rules.deadline_seconds
        self._meter = meter

    def pressure(self, now: float, uniform: float) -> Pressure:
        """Return how overloaded the queue is.

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
    """Rejects a share of the new tasks while the queue is overloaded. Thread-safe.

    One thread at a time measures the pressure. The others do not wait for it: they use the last measure.
    """

    def __init__(self, gauge: PressureGauge, rules: OverloadRules, uniform: Callable[[], float]) -> None:
        """Start open.

        Args:
            gauge: Measures the pressure on the queue.
            rules: Have the door; without one nothing is ever rejected.
            uniform: Draws a random number from [0, 1).
        """
        self._gauge = gauge
        self._door = rules.door
        self._look_seconds = min(LONGEST_LOOK_SECONDS, rules.deadline_seconds / DOOR_LOOKS)
        self._uniform = uniform
        self._looking = threading.Lock()
        self._next_look = 0.0
        self._refusal = 0.0
        self._pressure: Pressure | None = None

    def rejection(self, task: Task, now: float) -> Overloaded | None:
        """Return why a task is rejected; None if it is admitted.

        Raises:
            StoreError: If the pressure could not be measured. The next call tries again.
        """
        if self._door is None:
            return None
        if now >= self._next_look and self._looking.acquire(blocking=False):
            try:
                self._pressure = self._gauge.pressure(now, 0.5)
                self._refusal = self._door.refusal_probability(self._pressure)
                self._next_look = now + self._look_seconds
            finally:
                self._looking.release()
        if self._pressure is None or self._uniform() >= self._refusal:
            return None
        # A look has no jitter; each rejected task gets its own.
        retry_after_seconds = (self._pressure.retry_after_seconds or 0.0) * (0.5 + self._uniform())
        return Overloaded(task.task_id, ShedReason.DOOR, retry_after_seconds)
