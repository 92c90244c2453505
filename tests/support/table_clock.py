"""A clock of all tables, which moves only when a test says so."""

import time

import pytest

from freshq.stores.dynamodb import part, passes


class Ahead:
    """The time at which it was made plus what a test adds, instead of the tables' own time."""

    def __init__(self) -> None:
        self.began, self.seconds = time.time(), 0.0

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        return self.began + self.seconds

    def lead(self, patch: pytest.MonkeyPatch) -> None:
        """Make all tables opened from now on, and the slots of passes, use this clock."""
        for module in (passes, part):
            patch.setattr(module, "table_clock", lambda _calls: self.now)
