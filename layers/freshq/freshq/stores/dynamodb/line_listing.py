"""Lists the line records of one queue, at most once a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from freshq.stores.dynamodb.line_items import line_of, lines_partition
from freshq.stores.dynamodb.queries import newest_due

if TYPE_CHECKING:
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.names import Item
    from freshq.stores.lines import Line

LIST_SECONDS: Final = 1.0
# A listing reads what was announced since the last one. This much earlier, for slow writes, a lagging index
# and clocks that differ.
OVERLAP_SECONDS: Final = 5.0
# After this time the whole list is read again, for clocks that differ by more.
WHOLE_LIST_SECONDS: Final = 30.0
# Pages of a megabyte, or about 9,000 records, that one listing reads at most of either.
MAX_LIST_PAGES: Final = 2
NEVER: Final = float("-inf")


class LineListing:
    """The line records of one queue, as far as they were read. For one thread at a time."""

    def __init__(self, calls: TableCalls, queue: str) -> None:
        self._calls = calls
        self._queue = queue
        self._next_at = NEVER
        self._next_whole_at = NEVER
        # Where reading the whole list continues; None if it is complete.
        self._resume: Item | None = None
        self._read_until = NEVER

    def is_due(self, moment: float) -> bool:
        """Return whether it is time for a listing; if so, the next one is due later.

        Args:
            moment: Monotonic time in seconds.
        """
        if moment < self._next_at:
            return False
        self._next_at = moment + LIST_SECONDS
        return True

    def try_again(self) -> None:
        """Make a listing due at once, after one that failed."""
        self._next_at = NEVER

    def read(self, now: float, moment: float) -> list[tuple[Line, float]]:
        """Return lines and when they were announced, in seconds; the latest first.

        Args:
            now: Current time of the queue's clock, in seconds.
            moment: Monotonic time in seconds.

        Raises:
            StoreError: If the store did not answer.
        """
        since = self._read_until - OVERLAP_SECONDS
        found: list[tuple[str, float]] = []
        if self._resume is not None or moment < self._next_whole_at:
            found, more = self._pages(since, None)
            if more is not None:
                self._next_whole_at = moment
        if self._resume is not None or moment >= self._next_whole_at:
            if self._resume is None:
                self._next_whole_at = moment + WHOLE_LIST_SECONDS
            earlier, self._resume = self._pages(0.0, self._resume)
            found += earlier
        self._read_until = now
        return [
            (line, opened) for item_id, opened in found if (line := line_of(item_id, self._queue)) is not None
        ]

    def _pages(self, since: float, start_after: Item | None) -> tuple[list[tuple[str, float]], Item | None]:
        return newest_due(
            self._calls, lines_partition(self._queue), since, start_after, max_pages=MAX_LIST_PAGES
        )
