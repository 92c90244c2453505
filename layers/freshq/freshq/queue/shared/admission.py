"""Admission control: rejects new tasks by load, before they are written."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from freshq.errors import Overloaded
from freshq.policy.pressure import DoorControl, assess
from freshq.policy.shedding import ShedReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.model.task import Task
    from freshq.policy.flow import Flow
    from freshq.policy.pressure import Pressure
    from freshq.policy.rules import OverloadRules
    from freshq.queue.shared.flow import FlowMeter
    from freshq.stores.base import Store


class PressureGauge:
    """Measures the pressure on a queue."""

    def __init__(self, store: Store, queue: str, rules: OverloadRules, meter: FlowMeter) -> None:
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
        flow, oldest_age_seconds = self.measure(now)
        return assess(flow, oldest_age_seconds, self._deadline_seconds, uniform)

    def measure(self, now: float) -> tuple[Flow, float | None]:
        """Return what went through lately, and the age of the oldest live task in seconds.

        Raises:
            StoreError: If the store did not answer.
        """
        oldest = self._store.oldest_created(self._queue, now, now - self._deadline_seconds)
        return self._meter.flow(now), None if oldest is None else now - oldest


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
        self._door = None if rules.door is None else DoorControl(rules.door, rules.deadline_seconds)
        self._uniform = uniform
        self._checking = threading.Lock()

    def rejection(self, task: Task, now: float) -> Overloaded | None:
        """Return why a task is rejected; None if it is admitted.

        Raises:
            StoreError: If the pressure could not be measured. The next call tries again.
        """
        door = self._door
        if door is None:
            return None
        if now >= door.check_at and self._checking.acquire(blocking=False):
            try:
                door.observe(now, *self._gauge.measure(now))
            finally:
                self._checking.release()
        retry_after_seconds = door.rejects(task.group, self._uniform)
        if retry_after_seconds is None:
            return None
        return Overloaded(task.task_id, ShedReason.DOOR, retry_after_seconds)
