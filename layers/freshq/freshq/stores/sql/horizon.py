"""Pass over index entries that PostgreSQL cannot remove while an old snapshot is open.

A finished task leaves entries in the indexes until no snapshot can see the versions of its row. Next to a
report, a backup or a lagging standby they pile up exactly where a claim begins to search, and each costs a
visit to its row. So while such a snapshot is open, a process occasionally finds out which parts of a line are
empty, and its claims search only the rest. It searches everything again after several seconds, because
another process may have returned a task to its old place.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import sqlalchemy as sa

from freshq.model.forks import new_lock
from freshq.model.task import TaskStatus
from freshq.stores.lines import line_key
from freshq.stores.sql.rows import microseconds

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from freshq.model.task import Task
    from freshq.stores.base import Stats
    from freshq.stores.sql.database import Database

    # Times in microseconds, both exclusive.
    Span: TypeAlias = tuple[int, int]
    Find: TypeAlias = Callable[[str, Mapping[str, Any]], Sequence[Any]]

# Later than any time, and, negated, earlier.
EVER_US: Final = 2**62
# A snapshot counts as old once this many transactions have begun since.
OLD_TRANSACTIONS: Final = 200
# How often to look for old snapshots.
CHECK_SECONDS: Final = 2.0
# How often to find out which parts are empty.
PROBE_SECONDS: Final = 0.1
# How often to look for new lines.
LOOKUP_SECONDS: Final = 1.0
# How often to search everything, and how often to do so if nothing was found elsewhere.
FULL_SECONDS: Final = 10.0
EMPTY_SECONDS: Final = 1.0
# A full search that found nothing takes at most this part of the time.
SEARCH_PART: Final = 0.001
# Between two looks for all lines, up to this many are known, and only the gaps between them are read.
MAX_KNOWN: Final = 4
# A put commits within this time of its task's creation; a later one may be found by the next full search.
COMMIT_US: Final = 250_000
# More empty ranges of a line are not worth a search each.
MAX_RANGES: Final = 4
# The holders of row versions: snapshots and unfinished writes of sessions (including a standby's),
# replication slots, and prepared transactions. Everyone may read these columns, but only some users may read
# when other sessions began.
OLDEST: Final = sa.text(
    "SELECT coalesce(max(transactions), 0) AS transactions, max(seconds) AS seconds,"
    " (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = to_regclass(:table)) AS dead_rows FROM ("
    " SELECT greatest(age(backend_xmin), age(backend_xid)) AS transactions,"
    " extract(epoch FROM clock_timestamp() - xact_start) AS seconds FROM pg_stat_activity"
    " WHERE pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker'"
    " AND (datname = current_database() OR backend_type = 'walsender')"
    " UNION ALL SELECT age(xmin), NULL FROM pg_replication_slots"
    " UNION ALL SELECT age(transaction), extract(epoch FROM clock_timestamp() - prepared)"
    " FROM pg_prepared_xacts WHERE database = current_database()) AS held WHERE transactions > 0"
)


@dataclass
class EmptyParts:
    """The parts of a queue that a process has found empty since its last full search. Thread-safe.

    Attributes:
        began: When the full search began, by the monotonic clock.
        search_seconds: Its duration; 0 while it runs.
        lines: For each line, ranges of creation times in which no task waits, ascending.
        probe_at: For each line, when to find out again, by the monotonic clock.
        entered: Lines and creation times of the tasks that this process has put or returned since.
        floors_us: For each kind of attention, a time until which no task needs it.
        lookups: Answers of lookups of lines.
        earlier: The answers before these.
        look_up_at: When to forget them, by the monotonic clock.
        look_at_all_at: When to look for all lines again, by the monotonic clock.
        due: When to read again when the next task is due, by the monotonic clock, and the last answer.
        to_expire: When to read again which tasks expire first, by the monotonic clock, and the last answer.
    """

    began: float
    search_seconds: float = 0.0
    lines: dict[str, list[Span]] = field(default_factory=dict)
    probe_at: dict[str, float] = field(default_factory=dict)
    entered: list[tuple[str, int]] = field(default_factory=list)
    floors_us: dict[str, int] = field(default_factory=dict)
    lookups: dict[tuple[Any, ...], Sequence[Any]] = field(default_factory=dict)
    earlier: dict[tuple[Any, ...], Sequence[Any]] = field(default_factory=dict)
    look_up_at: float = -inf
    look_at_all_at: float = -inf
    due: tuple[float, float | None] = (-inf, None)
    to_expire: tuple[float, Sequence[Any]] = (-inf, ())
    _lock: threading.Lock = field(default_factory=new_lock)

    def spans(self, line: str, after_us: int, *, newest_first: bool) -> list[Span]:
        """Return the part of a line still to search after a creation time, in the order of the search."""
        with self._lock:
            ranges = [*self.lines.get(line, ())]
        spans: list[Span] = []
        for low, high in (*ranges, (EVER_US, EVER_US)):
            if low > after_us:
                spans.append((after_us, min(low + 1, EVER_US)))
            after_us = max(after_us, high - 1)
        return spans[::-1] if newest_first else spans

    def to_probe(self, lines: Iterable[str], now: float) -> list[str]:
        """Return the lines whose empty parts are due to be found; count them as done."""
        due = [line for line in lines if now >= self.probe_at.get(line, -inf)]
        self.probe_at |= dict.fromkeys(due, now + PROBE_SECONDS)
        return due

    def find_out(
        self,
        lines: Iterable[str],
        between_us: Span,
        probe: Callable[[Mapping[str, Sequence[Span]]], Mapping[str, int]],
        *,
        newest_first: bool,
    ) -> None:
        """Find the empty parts.

        Args:
            lines: The lines.
            between_us: The creation times between which to look.
            probe: Returns, by line, when the best task in the line's spans was created, if there is one.
            newest_first: The order of the search.
        """
        since = len(self.entered)
        after_us, until_us = between_us
        spans = {line: self.spans(line, after_us, newest_first=newest_first) for line in lines}
        best_us = probe(
            {
                line: [(low, min(high, until_us)) for low, high in spans[line] if low < until_us]
                for line in spans
            }
        )
        for line in spans:
            low, high = -EVER_US, until_us
            if line in best_us and newest_first:
                low = best_us[line]
            elif line in best_us:
                high = best_us[line]
            self._note(line, (low, high), since)

    def _note(self, line: str, empty: Span, since: int) -> None:
        """Note that between two times nothing waits except tasks that entered after the first `since`."""
        if empty[0] >= empty[1] - 1:
            return
        with self._lock:
            joined = [empty]
            ranges: list[Span] = []
            for each in self.lines.get(line, ()):
                (joined if each[0] <= empty[1] and each[1] >= empty[0] else ranges).append(each)
            ranges.append((min(each[0] for each in joined), max(each[1] for each in joined)))
            for entered_line, created_us in self.entered[since:]:
                ranges = _without(ranges, created_us) if entered_line == line else ranges
            self._keep(line, ranges)

    def enter(self, line: str, created_us: int) -> None:
        """Note that a task of this process has entered a line."""
        with self._lock:
            self.entered.append((line, created_us))
            if not any(line in found for found in self.lookups.values()):
                self.lookups.clear()
            if line in self.lines:
                self._keep(line, _without(self.lines[line], created_us))

    def _keep(self, line: str, ranges: Iterable[Span]) -> None:
        widest = sorted(ranges, key=lambda each: each[0] - each[1])[:MAX_RANGES]
        self.lines[line] = sorted(widest)

    def look_up(self, find: Find, now: float, name: str, parameters: Mapping[str, Any]) -> Sequence[Any]:
        """Return the answer of a lookup of lines, or an earlier answer if no line has a task now."""
        if now >= self.look_up_at:
            self.look_up_at = now + LOOKUP_SECONDS
            self.lookups, self.earlier = {}, self.lookups
        key = (name, *sorted(parameters.items()))
        found = self.lookups.get(key)
        if not found:
            found = self.lookups[key] = find(name, parameters) or self.earlier.get(key, ())
        return found

    def find_lines(self, find: Find, now: float, name: str, parameters: Mapping[str, Any]) -> Sequence[Any]:
        """Find lines for `look_up`: all of them now and then, in between only lines beside the known ones.

        A known line may be empty; whether it is, a search finds out by reading every dead entry.
        """
        known = sorted(self.earlier.get((name, *sorted(parameters.items())), ()))
        if not 0 < len(known) <= MAX_KNOWN or now >= self.look_at_all_at:
            self.look_at_all_at = now + FULL_SECONDS
            return find(name, parameters)
        bounds = [parameters["of_after"], *known, parameters["of_until"]]
        gaps = ({"of_after": after, "of_until": until} for after, until in pairwise(bounds))
        return sorted({*known, *chain.from_iterable(find(name, {**parameters, **gap}) for gap in gaps)})

    def known_lines(self, now: float) -> Sequence[Any]:
        """Return the lines of the last lookup; none if it is not recent, or found many."""
        known = next(filter(None, (*self.lookups.values(), *self.earlier.values())), ())
        return known if now < self.look_up_at and len(known) <= MAX_KNOWN else ()

    def next_due(self, read: Callable[[], float | None], monotonic: float, now: float) -> float | None:
        """Return when the next task is due, as read at most `LOOKUP_SECONDS` ago.

        Args:
            read: Reads it.
            monotonic: The time by the monotonic clock.
            now: The time of the queue.
        """
        read_at, due = self.due
        if monotonic >= read_at or (due is not None and due <= now):
            due = read()
            self.due = (monotonic + LOOKUP_SECONDS, due)
        return due

    def first_to_expire(self, read: Callable[[], Sequence[Any]], monotonic: float) -> Sequence[Any]:
        """Return the tasks that expire first, as read at most `FULL_SECONDS` ago."""
        if monotonic >= self.to_expire[0]:
            self.to_expire = (monotonic + FULL_SECONDS, read())
        return self.to_expire[1]


def _without(ranges: Iterable[Span], created_us: int) -> list[Span]:
    """Return ranges without a creation time."""
    split: list[Span] = []
    for low, high in ranges:
        within = low < created_us < high
        split += [(low, created_us), (created_us, high)] if within else [(low, high)]
    return split


class Horizon:
    """Finds old snapshots, and keeps the ranges that this process may skip while they are open. Thread-safe.

    Attributes:
        watches: Whether there can be any: on PostgreSQL only.
        monotonic: Returns the time in seconds, by a clock that is never set.
    """

    def __init__(
        self, database: Database, table: str, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Read nothing yet.

        Args:
            database: The database.
            table: Name of the table of tasks, quoted if need be.
            monotonic: Returns the time in seconds, by a clock that is never set.
        """
        self._database = database
        self._table = table
        self.monotonic = monotonic
        self.watches = database.dialect == "postgresql"
        self._check_at = -inf if self.watches else inf
        self._is_held = False
        self._empty_parts: dict[str, EmptyParts] = {}

    def empty_parts(self, queue: str) -> EmptyParts | None:
        """Return the parts of a queue that a search may skip; None if no old snapshot is open.

        Raises:
            StoreError: If the database failed.
        """
        now = self.monotonic()
        if now >= self._check_at:
            self._check_at = now + CHECK_SECONDS
            self._is_held = self._oldest().transactions >= OLD_TRANSACTIONS
        if not self._is_held:
            self._empty_parts.clear()
            return None
        parts = self._empty_parts.get(queue)
        if parts is None or now >= parts.began + FULL_SECONDS:
            parts = self._begin(queue)
        return parts

    def with_dead_rows(self, stats: Stats) -> Stats:
        """Return stats with the age of the oldest snapshot, and the number of dead rows, on PostgreSQL.

        Raises:
            StoreError: If the database failed.
        """
        if not self.watches:
            return stats
        oldest = self._oldest()
        seconds = None if oldest.seconds is None else float(oldest.seconds)
        return replace(stats, oldest_snapshot_seconds=seconds, dead_rows=oldest.dead_rows or 0)

    def _oldest(self) -> sa.Row[Any]:
        return self._database.rows(OLDEST, {"table": self._table})[0]

    def _begin(self, queue: str) -> EmptyParts:
        earlier = self._empty_parts.get(queue)
        parts = EmptyParts(self.monotonic())
        if earlier is not None:
            parts.lookups, parts.earlier = earlier.lookups, earlier.earlier
            parts.look_up_at, parts.look_at_all_at = earlier.look_up_at, earlier.look_at_all_at
            parts.due, parts.to_expire = earlier.due, earlier.to_expire
        self._empty_parts[queue] = parts
        return parts

    def known(self, queue: str) -> EmptyParts | None:
        """As `empty_parts`, but within a claim: read nothing, and keep the same answer."""
        return self._empty_parts.get(queue)

    def recent(self, queue: str) -> EmptyParts | None:
        """As `known`, outside of a claim: None if the last full search is too long ago."""
        parts = self._empty_parts.get(queue)
        return None if parts is None or self.monotonic() >= parts.began + FULL_SECONDS else parts

    def searches_again(self, queue: str) -> bool:
        """Return whether a claim that found nothing should search everything."""
        parts = self._empty_parts.get(queue)
        if parts is None:
            return False
        pause_seconds = max(EMPTY_SECONDS, parts.search_seconds / SEARCH_PART)
        again = self.monotonic() >= parts.began + pause_seconds
        if again:
            self._begin(queue)
        return again

    def past(self, queue: str, agenda: str, now: float) -> dict[str, Any]:
        """Return the parameters of a search for the tasks of a queue that need a kind of attention by now."""
        parts = self.empty_parts(queue)
        from_us = -EVER_US if parts is None else parts.floors_us.get(agenda, -EVER_US)
        return {"of_queue": queue, "agenda": agenda, "from_us": from_us, "now_us": microseconds(now)}

    def none_past(self, where: Mapping[str, Any]) -> None:
        """Note that a search with these parameters of `past` found every task that needs attention."""
        if (parts := self._empty_parts.get(where["of_queue"])) is not None:
            parts.floors_us[where["agenda"]] = where["now_us"] - COMMIT_US

    def entered(self, tasks: Iterable[Task | None]) -> None:
        """Note that this process has stored new versions of tasks, which may be in a line."""
        for task in tasks if self._empty_parts else ():
            if task is None or task.status is not TaskStatus.PENDING:
                continue
            if (parts := self._empty_parts.get(task.queue)) is None:
                continue
            if task.not_before is None:
                line = line_key(task.priority, task.group, task.line_class)
                parts.enter(line, microseconds(task.created))
            else:
                parts.due = (-inf, None)
