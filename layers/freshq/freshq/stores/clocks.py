"""Guarded clocks: against jumps of the machine's clock, and against one that differs from the store's."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

# A larger step of the machine's clock is a jump.
JUMP_SECONDS: Final = 1.0
# A jump counts once it has lasted this long: a clock that is wrong for a moment moves no lease.
CONFIRM_SECONDS: Final = 5.0
# A clock that was passed to a queue, and does not say whether it is simulated, is first read for this long.
WATCH_SECONDS: Final = 0.00002
# Between two readings of a clock that runs, its error changes by less than this.
UNEVEN_SECONDS: Final = 0.05
# A clock that was wrong counts as right again once it is this part of the range away from both ends.
INNER_PART: Final = 0.25


def steady_seconds() -> float:
    """Return a time that never jumps and, where the system has such a clock, runs while it is suspended."""
    boot_time: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)


class Stopwatch:
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


@dataclass(frozen=True, slots=True)
class TimeRange:
    """What is known of the time of a store's clock, in seconds since the epoch.

    Attributes:
        earliest: It is certainly not earlier.
        latest: It is certainly not later.
        likely: The best estimate.
    """

    earliest: float
    latest: float
    likely: float

    @classmethod
    def around(cls, now: float, error_seconds: float) -> TimeRange:
        """Return a time that is known up to an error."""
        return cls(now - error_seconds, now + error_seconds, now)


ANY_TIME: Final = TimeRange(float("-inf"), float("inf"), float("nan"))


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
        self._lock = threading.Lock()
        self._offset: float | None = None
        self._jumped_to: float | None = None
        self._jumped_at = 0.0

    def __call__(self) -> float:
        """Return the time in seconds since the epoch."""
        with self._lock:
            steady, offset = self._read()
            jumped = self._offset is not None and abs(offset - self._offset) > JUMP_SECONDS
            if self._offset is None or not jumped or self._lasts(steady, offset):
                self._offset, self._jumped_to = offset, None
            return steady + self._offset

    def _read(self) -> tuple[float, float]:
        """Return the steady time, and how far the wall clock is ahead of it."""
        while True:
            before = self._steady()
            wall = self._wall()
            # The process may have been stopped between the two readings.
            if (after := self._steady()) - before < JUMP_SECONDS / 2:
                return after, wall - after

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


class ComparedClock:
    """A clock that is corrected when it is certainly not the store's time. Thread-safe.

    A simulated clock is left alone: one with a true attribute `simulated`, or without that attribute one that
    stands still, jumps or runs at another rate.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        store_range: Callable[[], TimeRange],
        steady: Callable[[], float] = steady_seconds,
        *,
        simulated: bool | None = None,
    ) -> None:
        """Compare a clock.

        Args:
            clock: Returns the time in seconds since the epoch.
            store_range: Returns between which times the store's clock is now.
            steady: Returns a time in seconds that never jumps.
            simulated: Whether the clock is simulated; None: as its attribute `simulated` says. Without one,
                find out, and watch for jumps.
        """
        simulated = getattr(clock, "simulated", None) if simulated is None else simulated
        self._clock = clock
        self._store_range = store_range
        self._steady = steady
        self._watched = simulated is None
        self._simulated = simulated
        self._offset: tuple[float, float] | None = None
        self._wrong = False

    def __call__(self) -> float:
        """Return the time in seconds since the epoch.

        Raises:
            StoreError: If the store's time was never read, and it does not answer.
        """
        if self._simulated is None:
            self._simulated = not (self._runs() and self._runs())
        if self._simulated:
            return self._clock()
        asked = self._steady()
        true = self._store_range()
        before = self._steady()
        given = self._clock()
        after = self._steady()
        if self._watched and self._jumped(given - after, given - before):
            self._simulated = True
            return given
        # The store's time went on after it was read.
        return self._corrected(given, true, after - asked)

    def _corrected(self, given: float, true: TimeRange, passed_seconds: float) -> float:
        inset = INNER_PART * (true.latest - true.earliest) if self._wrong else 0.0
        wrong = not true.earliest + inset <= given <= true.latest + passed_seconds - inset
        if wrong and not self._wrong:
            logger.warning(
                "the clock of this process is about %.1f s %s the store's; the store's time is used instead. "
                "Synchronize the clock",
                abs(given - true.likely),
                "ahead of" if given > true.likely else "behind",
            )
        self._wrong = wrong
        return true.likely if wrong else given

    def _runs(self) -> bool:
        """Return whether the clock goes forward as fast as time."""
        first = self._steady()
        start = self._clock()
        second = self._steady()
        while (third := self._steady()) < second + WATCH_SECONDS:
            pass
        went = self._clock() - start
        tolerance = WATCH_SECONDS / 10
        return third - second - tolerance <= went <= self._steady() - first + tolerance

    def _jumped(self, least: float, most: float) -> bool:
        """Return whether the clock jumped since it was last read.

        Args:
            least: How far it is ahead of the steady one, at least.
            most: At most.
        """
        last, self._offset = self._offset, (least, most)
        return last is not None and (least > last[1] + UNEVEN_SECONDS or most < last[0] - UNEVEN_SECONDS)
