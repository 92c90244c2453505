"""Removes the records of empty lines, and checks those lines once more later."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from typing import TYPE_CHECKING, Final

from freshq.stores.clocks import Stopwatch
from freshq.stores.dynamodb.line_items import (
    closing_item,
    closings_partition,
    line_record,
    lines_of,
    record_id,
)
from freshq.stores.dynamodb.line_rules import RULES
from freshq.stores.dynamodb.puts import PUT_THREADS
from freshq.stores.dynamodb.queries import earliest_due, may_have_live

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.keyspace import Keyspace
    from freshq.stores.dynamodb.names import Item
    from freshq.stores.lines import Line

# Lines of a closing: with it, they fill one BatchWriteItem.
CLOSING_LINES: Final = 24
# Clocks differ by less. A process that has just learnt of a closing waits for so much longer.
MAX_CLOCK_SKEW_SECONDS: Final = 60.0
# Upkeep does not know the deadlines of the tasks in a line that it announces again.
LONGEST_DEADLINE_SECONDS: Final = 366 * 86_400.0
MIN_LINES_FOR_THREADS: Final = 4


class LineClosings:
    """The closings of one table. Thread-safe."""

    def __init__(self, calls: TableCalls, keyspace: Keyspace) -> None:
        self._calls = calls
        self._keyspace = keyspace
        self._lock = threading.Lock()
        # Closings in the table: since when they are known here, and the lines not looked into yet.
        self._known_for: dict[str, Stopwatch] = {}
        self._left: dict[str, list[Line]] = {}

    def close(self, queue: str, lines: Sequence[Line], now: float) -> bool:
        """Delete the records of up to `CLOSING_LINES` lines; return whether that was done.

        Args:
            queue: Name of the queue.
            lines: The lines.
            now: Current time in seconds.

        Raises:
            StoreError: If the store did not answer. The records may be deleted; a closing names them.
        """
        since = Stopwatch()
        self._put_closing(queue, lines, now)
        if not RULES.may_delete(since.seconds()):
            return False
        try:
            self._calls.delete_many([record_id(queue, line) for line in lines])
        finally:
            if RULES.deletion_was_late(since.seconds()):
                self._put_closing(queue, lines, now + since.seconds())
        return True

    def _put_closing(self, queue: str, lines: Sequence[Line], now: float) -> None:
        self._calls.put(closing_item(queue, lines, now + RULES.recheck_after_seconds))

    def recheck(self, queue: str, now: float, limit: int) -> int:
        """Look into lines whose closing is due, and announce those with tasks again.

        Args:
            queue: Name of the queue.
            now: Current time in seconds.
            limit: Maximum number of lines.

        Returns:
            How many lines were looked into.

        Raises:
            StoreError: If the store did not answer.
        """
        entries = earliest_due(self._calls, closings_partition(queue), now + RULES.recheck_after_seconds)
        ripe = self._ripe(entries, now)[: ceil(limit / CLOSING_LINES)]
        done = 0
        for closing in self._calls.get_many(ripe):
            done += self._recheck(queue, closing, now, limit - done)
        return done

    def _ripe(self, entries: Sequence[tuple[str, float]], now: float) -> list[str]:
        """Return the closings whose lines can be looked into.

        Either this process has known them for long enough, whatever the clocks say, or they are overdue by
        more than clocks differ.
        """
        with self._lock:
            known_for = {item_id: self._known_for.get(item_id) or Stopwatch() for item_id, _due in entries}
            self._known_for = known_for
            self._left = {item_id: left for item_id, left in self._left.items() if item_id in known_for}
        return [
            item_id
            for item_id, due in entries
            if due + MAX_CLOCK_SKEW_SECONDS <= now
            or known_for[item_id].seconds() >= RULES.recheck_after_seconds
        ]

    def _recheck(self, queue: str, closing: Item, now: float, limit: int) -> int:
        """Look into up to `limit` lines of a closing; delete it after the last. Return how many."""
        closing_id = closing["taskId"]["S"]
        with self._lock:
            left = self._left.setdefault(closing_id, lines_of(closing))
        lines = left[:limit]
        for line in self.with_work(queue, lines, now):
            self._calls.put(line_record(queue, line, now, now + LONGEST_DEADLINE_SECONDS))
        if len(left) > limit:
            with self._lock:
                self._left[closing_id] = left[limit:]
        else:
            self._calls.delete(closing_id)
        return len(lines)

    def with_work(self, queue: str, lines: Sequence[Line], now: float) -> list[Line]:
        """Return those of some lines that have live tasks, by one query of each or more."""
        live = self._keyspace.status_index.live(0.0, now)

        def has_work(line: Line) -> bool:
            partitions = self._keyspace.pending_partitions(queue, [line])
            return any(may_have_live(self._calls, partition, live) for partition in partitions)

        if len(lines) < MIN_LINES_FOR_THREADS:
            return list(filter(has_work, lines))
        with ThreadPoolExecutor(PUT_THREADS, thread_name_prefix="freshq-lines") as pool:
            return [line for line, works in zip(lines, pool.map(has_work, lines), strict=True) if works]
