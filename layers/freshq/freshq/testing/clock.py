"""A clock that a test advances."""

from __future__ import annotations

from typing import Final

from freshq.model.checks import checked_seconds

# 2026-01-01T00:00:00Z: any moment would do, and a fixed one makes failures repeat.
DEFAULT_START: Final = 1_767_225_600.0


class ManualClock:
    """A clock that moves only when a test advances it. Pass it to a queue as `clock=`.

    Attributes:
        now: The time it shows, in seconds since the epoch.
    """

    def __init__(self, now: float = DEFAULT_START) -> None:
        """Show a time, in seconds since the epoch."""
        self.now = now

    def __call__(self) -> float:
        """Return the time it shows."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move forward.

        Raises:
            ValueError: If `seconds` is negative or not a number.
        """
        self.now += checked_seconds("seconds", seconds)
