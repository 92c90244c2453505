"""Times that no two tasks of one process share."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MICROSECONDS: Final = 1_000_000


class Stamps:
    """Gives out times, each at least a microsecond later than the one before. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Use a clock.

        Args:
            clock: Returns the time in seconds since the epoch.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._last_us = 0

    def next(self) -> float:
        """Return the time in seconds since the epoch, later than any before."""
        with self._lock:
            self._last_us = max(round(self._clock() * MICROSECONDS), self._last_us + 1)
            return self._last_us / MICROSECONDS
