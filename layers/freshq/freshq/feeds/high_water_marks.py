"""The state of the schedules of a queue, shared by all nodes; and when this node tries failed ticks again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from freshq.errors import StoreError
from freshq.queue.shared.shared_records import change_record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from freshq.policy.retry import Backoff
    from freshq.queue.base import BaseQueue


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """The state of a schedule: how far it got.

    Attributes:
        last: Its high-water mark: ticks up to here were fired or skipped, but for those that failed.
        failed: Ticks up to there that are to be tried again, in order.
    """

    last: float
    failed: tuple[float, ...] = ()


class HighWaterMarks:
    """Keeps the states of schedules in shared records of a queue."""

    def __init__(self, queue: BaseQueue) -> None:
        self._queue = queue

    def read(self, record_name: str) -> ScheduleState | None:
        """Return the state of a schedule; None if it has not started.

        Raises:
            StoreError: If the store did not answer.
        """
        record = self._queue.store.read_record(self._queue.name, record_name)
        return None if record is None else _state(record.values)

    def passed(self, record_name: str, ticks: Collection[float]) -> None:
        """Note that ticks were fired or skipped.

        Raises:
            StoreError: If the store did not answer, or others changed the record at each try.
        """

        def change(current: ScheduleState) -> ScheduleState:
            left = tuple(tick for tick in current.failed if tick not in ticks)
            return ScheduleState(max(current.last, *ticks), left)

        self._change(record_name, change)

    def failed(self, record_name: str, tick: float) -> None:
        """Note that a tick failed, unless another node got past it.

        Raises:
            StoreError: If the store did not answer, or others changed the record at each try.
        """

        def change(current: ScheduleState) -> ScheduleState:
            return ScheduleState(tick, (*current.failed, tick)) if tick > current.last else current

        self._change(record_name, change)

    def _change(self, record_name: str, change: Callable[[ScheduleState], ScheduleState]) -> None:
        def changed(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
            before = _state(values)
            after = change(before)
            return None if after == before else {"last": after.last, "failed": [*after.failed]}

        if not change_record(self._queue.store, self._queue.name, record_name, changed):
            msg = f"the high-water mark of {record_name!r} changed at each try to write it"
            raise StoreError(msg)


def _state(values: Mapping[str, Any]) -> ScheduleState:
    return ScheduleState(float(values.get("last", -math.inf)), tuple(map(float, values.get("failed", ()))))


class Retries:
    """When this node tries the failed ticks of a schedule again, each with its own backoff."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        # By tick, how often it failed, and when to try it next.
        self._failures: dict[float, tuple[int, float]] = {}

    @property
    def next_at(self) -> float:
        """When to try the next one, in seconds since the epoch; infinite if there is none."""
        return min((next_at for _failures, next_at in self._failures.values()), default=math.inf)

    def is_due(self, tick: float, now: float) -> bool:
        """Return whether to try a tick now."""
        return tick not in self._failures or self._failures[tick][1] <= now

    def failed(self, tick: float, now: float) -> bool:
        """Note that a tick failed; return whether for the first time."""
        failures = self._failures.get(tick, (0, 0.0))[0] + 1
        self._failures[tick] = failures, now + self._backoff.delay_seconds(failures, 1.0)
        return failures == 1

    def forget(self, tick: float) -> None:
        """Note that a tick was fired."""
        self._failures.pop(tick, None)

    def keep(self, ticks: Collection[float]) -> None:
        """Forget all but these ticks."""
        self._failures = {tick: entry for tick, entry in self._failures.items() if tick in ticks}
