"""Clocks that withstand jumps of the machine's time, and its difference from the store's."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

# A larger step of the machine's clock is a jump.
JUMP_SECONDS: Final = 1.0
# A jump counts once it has lasted this long: a clock that is wrong for a moment moves no lease.
CONFIRM_SECONDS: Final = 5.0
# A clock that was wrong counts as right again once it is this part of the range away from both ends.
INNER_PART: Final = 0.25


# Returns a time that never jumps and, where the system has such a clock, runs while it is suspended.
steady_seconds: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)


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
            while True:
                before = self._steady()
                wall = self._wall()
                steady = self._steady()
                # The process may have been stopped between the two readings.
                if steady - before < JUMP_SECONDS / 2:
                    break
            offset = wall - steady
            jumped = self._offset is not None and abs(offset - self._offset) > JUMP_SECONDS
            if self._offset is None or not jumped or self._lasts(steady, offset):
                self._offset, self._jumped_to = offset, None
            return steady + self._offset

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
    """The clock of this machine, corrected when it is certainly not the store's time. Thread-safe."""

    def __init__(
        self,
        clock: Callable[[], float],
        store_range: Callable[[], TimeRange],
        steady: Callable[[], float] = steady_seconds,
    ) -> None:
        """Compare a clock.

        Args:
            clock: Returns the time in seconds since the epoch.
            store_range: Returns between which times the store's clock is now.
            steady: Returns a time in seconds that never jumps.
        """
        self._clock = clock
        self._store_range = store_range
        self._steady = steady
        self._wrong = False

    def __call__(self) -> float:
        """Return the time in seconds since the epoch.

        Raises:
            StoreError: If the store's time was never read, and it does not answer.
        """
        asked = self._steady()
        true = self._store_range()
        given = self._clock()
        # The store's time went on after it was read.
        latest = true.latest + self._steady() - asked
        inset = INNER_PART * (true.latest - true.earliest) if self._wrong else 0.0
        wrong = not true.earliest + inset <= given <= latest - inset
        if wrong and not self._wrong:
            logger.warning(
                "the clock of this process is about %.1f s %s the store's; the store's time is used instead. "
                "Synchronize the clock",
                abs(given - true.likely),
                "ahead of" if given > true.likely else "behind",
            )
        self._wrong = wrong
        return true.likely if wrong else given
