"""Times that no two tasks of one process share."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MICROSECONDS: Final = 1_000_000
# A clock that is set back by less than this is waited for, so that times stay in order.
MAX_AHEAD_US: Final = 1 * MICROSECONDS


class Stamps:
    """Gives out times, each at least a microsecond later than the one before. Thread-safe.

    When the clock goes back by more than a second, the times go back with it: after one wrong reading, an
    hour ahead, they do not stay there.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Use a clock.

        Args:
            clock: Returns the time in seconds since the epoch.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._latest_reading_us = self._last_us = 0

    def next(self) -> float:
        """Return the time in seconds since the epoch, later than any before unless the clock went back."""
        with self._lock:
            # Read under the lock: a thread that waited for it would take an old reading for a jump back.
            reading_us = round(self._clock() * MICROSECONDS)
            if reading_us < self._latest_reading_us - MAX_AHEAD_US:
                self._latest_reading_us = self._last_us = reading_us
            else:
                self._latest_reading_us = max(self._latest_reading_us, reading_us)
                self._last_us = max(reading_us, self._last_us + 1)
            return self._last_us / MICROSECONDS
