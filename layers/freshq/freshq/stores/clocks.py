"""Clocks that withstand jumps of the machine's time."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from freshq.errors import StoreError
from freshq.model.forks import new_lock

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

# A larger step of the machine's clock is a jump.
JUMP_SECONDS: Final = 1.0
# A jump counts once it has lasted this long: a momentarily wrong clock moves no lease.
CONFIRM_SECONDS: Final = 5.0
# Clocks drift by up to 50 ppm, so by 1.5 ms in this time.
MEASURE_EVERY_SECONDS: Final = 30.0
# Readings per measurement. Only the one with the shortest round trip counts, as the most accurate.
READINGS: Final = 3


# Returns a time that never jumps and, where the system has such a clock, runs while it is suspended.
steady_seconds: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)


class ElapsedTime:
    """The time since it was made.

    Even a steady clock may stand still while a virtual machine is paused, and the wall clock may be set
    back: the longer time counts.
    """

    __slots__ = ("_steady", "_wall")

    def __init__(self) -> None:
        self._steady = steady_seconds()
        self._wall = time.time()

    def seconds(self) -> float:
        """Return the time since the start."""
        return max(steady_seconds() - self._steady, time.time() - self._wall)


class MachineClock:
    """The clock of this machine, without its jumps until they have lasted `CONFIRM_SECONDS`. Thread-safe."""

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = steady_seconds
    ) -> None:
        """Use two clocks of the machine.

        Args:
            wall: Returns the time in seconds since the epoch.
            steady: Returns a time in seconds that never jumps.
        """
        self._wall = wall
        self._steady = steady
        self._lock = new_lock()
        self._offset: float | None = None
        self._jumped_to: float | None = None
        self._jumped_at = 0.0

    def __call__(self) -> float:
        """Return the time in seconds since the epoch."""
        with self._lock:
            while True:
                before = self._steady()
                wall = self._wall()
                steady = self._steady()
                # The process may have been stopped between the two readings.
                if steady - before < JUMP_SECONDS / 2:
                    break
            offset, known = wall - steady, self._offset
            if known is not None and abs(offset - known) > JUMP_SECONDS and not self._lasts(steady, offset):
                return steady + known
            self._offset, self._jumped_to = offset, None
            return wall

    def _lasts(self, steady: float, offset: float) -> bool:
        """Return whether a jump has lasted long enough."""
        if self._jumped_to is None or abs(offset - self._jumped_to) > JUMP_SECONDS:
            self._jumped_to, self._jumped_at = offset, steady
            logger.warning(
                "the clock of this machine jumped by %+.1f s; it is not followed unless that lasts %.0f s",
                offset - (self._offset or 0.0),
                CONFIRM_SECONDS,
            )
        return steady - self._jumped_at >= CONFIRM_SECONDS


class DatabaseClock:
    """The database's time, as this process's monotonic clock plus a measured offset.

    Thread-safe. While the database does not answer, the clock uses the last offset.
    """

    def __init__(
        self,
        read: Callable[[], float],
        monotonic: Callable[[], float] = steady_seconds,
        measure_every_seconds: float = MEASURE_EVERY_SECONDS,
        may_read: Callable[[], bool] = lambda: True,
    ) -> None:
        """Measure the offset at the first call, not here.

        Args:
            read: Returns the database's time in seconds since the epoch.
            monotonic: Returns a time in seconds that never goes backwards.
            measure_every_seconds: Time between measurements.
            may_read: Returns whether a read would wait for no connection. All connections may be held by
                transactions that need the time to end, so an offset is not measured again until then.
        """
        self._read = read
        self._may_read = may_read
        self._monotonic = monotonic
        self._measure_every_seconds = measure_every_seconds
        self._lock = new_lock()
        self._offset: float | None = None
        self._measure_at = 0.0

    def __call__(self) -> float:
        """Return the database's time in seconds since the epoch.

        Raises:
            StoreError: If the database does not answer and no offset has been measured.
        """
        offset = self._offset
        if offset is None:
            with self._lock:
                if self._offset is None:
                    self._measure()
        elif self._is_due() and self._lock.acquire(blocking=False):
            try:
                self._measure()
            finally:
                self._lock.release()
        return self._monotonic() + (self._offset or 0.0)

    def _is_due(self) -> bool:
        return self._monotonic() >= self._measure_at and self._may_read()

    def _measure(self) -> None:
        try:
            readings = [self._reading() for _ in range(READINGS)]
        except StoreError:
            if self._offset is None:
                raise
        else:
            _round_trip, self._offset = min(readings)
        self._measure_at = self._monotonic() + self._measure_every_seconds

    def _reading(self) -> tuple[float, float]:
        """Return the round trip of one reading and the measured offset, in seconds."""
        before = self._monotonic()
        there = self._read()
        after = self._monotonic()
        return after - before, there - (before + after) / 2
