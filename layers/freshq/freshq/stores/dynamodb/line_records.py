"""Announce, list and close the lines that have work; keep the levels, groups and pause of each queue."""

from __future__ import annotations

import logging
import secrets
import time
import uuid
from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import compress, islice
from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from freshq.errors import StoreError
from freshq.model.fields import RESERVED_ID_PREFIX
from freshq.model.forks import new_lock
from freshq.model.lifecycle import new_token
from freshq.stores.clocks import ElapsedTime
from freshq.stores.dynamodb.batches import each_in_threads
from freshq.stores.dynamodb.calls import InvalidUpdate
from freshq.stores.dynamodb.items import CONTROL_PREFIX, has_record, level_name, milliseconds
from freshq.stores.dynamodb.queries import due_entries, due_query, pages_of
from freshq.stores.lines import CLASS_CHARS, Line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from freshq.model.task import Task
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.queries import Partitions
    from freshq.stores.dynamodb.schema import Item

logger = logging.getLogger(__name__)
# Another process's change is noticed within this time, so that not every claim reads the record.
MAX_STALENESS_SECONDS: Final = 1.0
LINE_PREFIX: Final = f"{RESERVED_ID_PREFIX}line#"
CLOSING: Final = "closing"
# TTL is the last resort for items that no process deletes.
TTL_SECONDS: Final = 7 * 86_400
# A record is written again when its TTL leaves less than this after the deadline of a task.
TTL_MARGIN_SECONDS: Final = 86_400
# A line that receives tasks more often than this stays announced while it is empty.
QUIET_SECONDS: Final = 2.0
LIST_SECONDS: Final = 1.0
# A listing reads the records announced since the last one, and this much earlier: writes may be slow, the
# index may lag, and clocks differ.
OVERLAP_SECONDS: Final = 5.0
# After this time the whole list is reread, for clocks that differ by more.
WHOLE_LIST_SECONDS: Final = 30.0
# Pages of a megabyte, or about 9,000 records, that one listing reads at most of either.
MAX_LIST_PAGES: Final = 2
NEVER: Final = float("-inf")
# Lines of a closing: with it, they fill one BatchWriteItem. Its process looks once more into as many: a task
# may have been put between the last look into a line and the deletion of its record.
CLOSING_LINES: Final = 24
# Clocks differ by less. A process that has just learned of a closing waits this much longer.
MAX_CLOCK_SKEW_SECONDS: Final = 60.0
# The deadline of a line record that upkeep writes: it does not know the deadlines of the tasks.
LONGEST_DEADLINE_SECONDS: Final = 366 * 86_400.0
# Number of lines found empty that a claim checks again, and how often each. If there are more, each listing
# checks many of them: a task that is put into one of a hundred waits for a listing, not for fifty claims.
EMPTY_CHECKS: Final = 2
LISTED_CHECKS: Final = 100
EMPTY_CHECK_SECONDS: Final = 0.5
# After this time a line is checked once more before its record is deleted.
OUTDATED_SECONDS: Final = 1.0
# A producer that was suspended after it checked the record of a line checks it again, up to this often.
MAX_LOOKS: Final = 3
# Number of lines whose records a producer remembers having seen.
MAX_CHECKS: Final = 10_000
# How often the upkeep within a claim checks closed lines, and those of how many closings: a process seldom
# writes as many in this time, and there may be no other upkeep. The background does more.
CLAIM_RECHECK_SECONDS: Final = 1.0
CLAIM_CLOSINGS: Final = 8
# Closings that a process can know, each for `recheck_after_seconds` before it looks into the lines.
KNOWN_CLOSINGS: Final = 250


@dataclass(frozen=True, slots=True)
class Control:
    """The state of a queue that every claim needs.

    Attributes:
        paused: Whether claims are suspended.
        levels: Priority levels that may hold tasks of no group; always has 0.
        grouped: Whether a task of a group was ever put.
        as_of: Monotonic time at which the read began.
    """

    paused: bool
    levels: frozenset[int]
    grouped: bool
    as_of: float


class ControlRecords:
    """Reads and writes control records, and caches them for `MAX_STALENESS_SECONDS`. Thread-safe."""

    def __init__(self, calls: TableCalls) -> None:
        self._calls = calls
        self._lock = new_lock()
        self._cache: dict[str, Control] = {}

    def read(self, queue: str, *, anew: bool = False) -> Control:
        """Return the state of a queue, at most `MAX_STALENESS_SECONDS` old; if `anew`, as it is now."""
        now = time.monotonic()
        with self._lock:
            cached = self._cache.get(queue)
        if cached is not None and not anew and now - cached.as_of < MAX_STALENESS_SECONDS:
            return cached
        return self._remember(queue, self._calls.get(CONTROL_PREFIX + queue) or {}, now)

    def use_level(self, queue: str, level: int) -> None:
        """Record that a level holds tasks, before the first one is written."""
        cached = self._cache.get(queue)
        if level and (cached is None or level not in cached.levels):
            values = {":levels": {"NS": [str(level)]}}
            try:
                self.update(queue, values, "SET #requestToken = :requestToken ADD #levels :levels")
            except InvalidUpdate:
                logger.warning("queue %r: its levels were damaged and are replaced", queue)
                levels = {level, *(() if cached is None else cached.levels)}
                values = {":levels": {"NS": [str(level) for level in levels]}}
                self.update(queue, values, "SET #requestToken = :requestToken, #levels = :levels")

    def use_groups(self, queue: str) -> None:
        """Record that groups have tasks, before the first one is written."""
        cached = self._cache.get(queue)
        if cached is None or not cached.grouped:
            expression = "SET #grouped = :grouped, #requestToken = :requestToken"
            self.update(queue, {":grouped": {"BOOL": True}}, expression)

    def update(self, queue: str, values: Item, expression: str) -> None:
        """Change the control record of a queue, and cache the new version."""
        now = time.monotonic()
        arguments = {
            "Key": {"taskId": {"S": CONTROL_PREFIX + queue}},
            "UpdateExpression": expression,
            "ExpressionAttributeValues": values | {":requestToken": {"S": new_token()}},
        }
        self._remember(queue, self._calls.update(arguments) or {}, now)

    def _remember(self, queue: str, item: Item, as_of: float) -> Control:
        """Cache a record unless a later call was answered first; return the cached record."""
        # A level that is not a whole number is damaged; the other levels are still served.
        levels = frozenset(
            int(level) for level in item.get("levels", {}).get("NS", []) if level.isdigit()
        ) | {0}
        paused = bool(item.get("paused", {}).get("BOOL", False))
        grouped = bool(item.get("grouped", {}).get("BOOL", False))
        read = Control(paused, levels, grouped, as_of)
        with self._lock:
            cached = self._cache.get(queue)
            if cached is None or cached.as_of <= as_of:
                self._cache[queue] = read
            return self._cache[queue]


def record_id(queue: str, line: Line) -> str:
    """Return the id of the record of a line."""
    return f"{LINE_PREFIX}{queue}#{_name(line)}"


def line_record(queue: str, line: Line, now: float, deadline: float) -> Item:
    """Return the record of a line.

    Args:
        queue: Name of the queue.
        line: The line.
        now: Current time in seconds.
        deadline: Deadline of a task that is put into the line.
    """
    # No two records of a line have the same time, even if a clock stands still.
    opened = now + secrets.randbelow(1000) / 1e6
    return {
        "taskId": {"S": record_id(queue, line)},
        "dueShard": {"S": lines_partition(queue)},
        "dueAt": milliseconds(opened),
        "ttl": {"N": str(ceil(deadline) + TTL_SECONDS)},
        "requestToken": {"S": new_token()},
    }


def outlasts(record: Item, deadline: float) -> bool:
    """Return whether a line record remains until well after a deadline."""
    try:
        return int(record["ttl"]["N"]) >= deadline + TTL_MARGIN_SECONDS
    except (KeyError, TypeError, ValueError):
        return False


def lines_partition(queue: str) -> str:
    """Return the partition of the line records in the due index."""
    return f"{queue}#LINES"


def closings_partition(queue: str) -> str:
    """Return the partition of the closings in the due index."""
    return f"{queue}#CLOSING"


def closing_item(queue: str, lines: Iterable[Line], due_at: float) -> Item:
    """Return the closing of the given lines, due at a time in seconds."""
    return {
        "taskId": {"S": f"{LINE_PREFIX}{queue}#{CLOSING}#{uuid.uuid4().hex}"},
        "dueShard": {"S": closings_partition(queue)},
        "dueAt": milliseconds(due_at),
        "lines": {"SS": [_name(line) for line in lines]},
        "ttl": {"N": str(ceil(due_at) + TTL_SECONDS)},
        "requestToken": {"S": new_token()},
    }


def lines_of(closing: Item) -> list[Line]:
    """Return the lines that a closing names, without unreadable ones."""
    return [line for name in closing.get("lines", {}).get("SS", ()) if (line := _named(name)) is not None]


def line_of(item_id: str, queue: str) -> Line | None:
    """Return the line of a record; None if its id names none."""
    return _named(item_id.removeprefix(f"{LINE_PREFIX}{queue}#"))


def _name(line: Line) -> str:
    return f"{level_name(line.level, line.of_class)}#{line.group or ''}"


def _named(name: str) -> Line | None:
    level, _, group = name.partition("#")
    digits, _, of_class = level.partition(".")
    if not digits.isdecimal() or not (group or of_class) or len(of_class) not in (0, CLASS_CHARS):
        logger.warning("left out: %r names no line", name)
        return None
    return Line(int(digits), group or None, of_class)


@dataclass(frozen=True, slots=True)
class LineRules:
    """The times of the protocol, in seconds.

    Attributes:
        trust_seconds: How long a producer puts into a line without checking its record again.
        send_seconds: How long after its closing was written a record may still be deleted.
        landing_seconds: From sending a write to its effect, unless the sender notices that it took longer.
        index_lag_seconds: From the effect of a put until every query of the index finds the task.
    """

    trust_seconds: float
    send_seconds: float
    landing_seconds: float
    index_lag_seconds: float

    def may_put(self, check_age_seconds: float) -> bool:
        """Return whether a task may be put, given the time since the record was last looked at."""
        return check_age_seconds < self.trust_seconds

    def put_was_late(self, check_age_seconds: float) -> bool:
        """Return whether the record must be checked again after a put that has just ended."""
        return check_age_seconds > self.trust_seconds + self.landing_seconds

    def may_delete(self, closing_age_seconds: float) -> bool:
        """Return whether the records of a closing may still be deleted."""
        return closing_age_seconds < self.send_seconds

    def deletion_was_late(self, closing_age_seconds: float) -> bool:
        """Return whether the lines need another closing after a deletion that has just ended."""
        return closing_age_seconds > self.send_seconds + self.landing_seconds

    @property
    def recheck_after_seconds(self) -> float:
        """From a closing until upkeep looks into its lines.

        A deletion takes effect up to `send_seconds + landing_seconds` after the closing. A put may have
        looked at the record right before that.
        """
        deleted = self.send_seconds + self.landing_seconds
        return deleted + self.trust_seconds + self.landing_seconds + self.index_lag_seconds


RULES: Final = LineRules(trust_seconds=1.0, send_seconds=1.0, landing_seconds=2.0, index_lag_seconds=3.0)


class LineListing:
    """The line records of one queue that have been read so far. For one thread at a time."""

    def __init__(self, calls: TableCalls, queue: str) -> None:
        self._calls = calls
        self._queue = queue
        self._next_at = NEVER
        self._next_whole_at = NEVER
        # Where reading the whole list continues; None if it is complete.
        self._resume: Item | None = None
        self._read_until = NEVER

    def is_due(self, moment: float) -> bool:
        """Return whether a listing is due at a monotonic time; if so, the next one is due later."""
        if moment < self._next_at:
            return False
        self._next_at = moment + LIST_SECONDS
        return True

    def try_again(self) -> None:
        """Make a listing due now."""
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
            begins = self._resume is None
            earlier, self._resume = self._pages(0.0, self._resume)
            found += earlier
            if begins:  # only now: if the store does not answer, the next listing begins again
                self._next_whole_at = moment + WHOLE_LIST_SECONDS
        self._read_until = now
        return [
            (line, opened) for item_id, opened in found if (line := line_of(item_id, self._queue)) is not None
        ]

    def _pages(self, since: float, start_after: Item | None) -> tuple[list[tuple[str, float]], Item | None]:
        """Read entries from the latest to a time in seconds; return the key after which there may be more."""
        arguments = due_query(lines_partition(self._queue), ">=", since) | {"ScanIndexForward": False}
        if start_after is not None:
            arguments["ExclusiveStartKey"] = start_after
        pages = list(islice(pages_of(self._calls, arguments), MAX_LIST_PAGES))
        found = [entry for page in pages for entry in due_entries(page)]
        return found, pages[-1].get("LastEvaluatedKey")


class LineClosings:
    """The closings of one table. Thread-safe."""

    def __init__(self, partitions: Partitions) -> None:
        self._calls = partitions.calls
        self._partitions = partitions
        self._lock = new_lock()
        # Since when this process knows the closings in the table.
        self._known_for: dict[str, ElapsedTime] = {}

    def close(self, queue: str, lines: Sequence[Line], clock: Callable[[], float]) -> bool:
        """Delete the records of up to `CLOSING_LINES` lines; return whether that was done.

        Args:
            queue: Name of the queue.
            lines: The lines.
            clock: Returns the time in seconds since the epoch. A closing that is dated back is overdue too
                soon.

        Raises:
            StoreError: If the store did not answer. The records may be deleted; a closing names them.
        """
        since = ElapsedTime()
        self._put_closing(queue, lines, clock())
        if not RULES.may_delete(since.seconds()):
            return False
        try:
            self._calls.delete_many([record_id(queue, line) for line in lines])
        finally:
            if RULES.deletion_was_late(since.seconds()):
                self._put_closing(queue, lines, clock())
        return True

    def _put_closing(self, queue: str, lines: Sequence[Line], now: float) -> None:
        self._calls.put(closing_item(queue, lines, now + RULES.recheck_after_seconds))

    def recheck(self, queue: str, now: float, limit: int) -> int:
        """Check the lines whose closing is due, and announce again the lines that have tasks.

        Args:
            queue: Name of the queue.
            now: Current time in seconds.
            limit: Maximum number of lines; it looks into all lines of the last closing.

        Returns:
            Number of lines checked.

        Raises:
            StoreError: If the store did not answer.
        """
        coming = due_query(closings_partition(queue), "<=", now + RULES.recheck_after_seconds)
        ripe = self._ripe(due_entries(self._calls.query(coming | {"Limit": KNOWN_CLOSINGS})), now)
        most, done = max(CLAIM_CLOSINGS, ceil(limit / CLOSING_LINES)), 0
        # Processes that do this at the same time begin at different ones.
        start = int(now * 1e6) % max(1, len(ripe) - most + 1)
        for closing in self._calls.get_many(ripe[start : start + most]):
            if done < limit:
                lines = lines_of(closing)
                self.announce_again(queue, lines, now)
                self._calls.delete(closing["taskId"]["S"])
                done += len(lines)
        return done

    def _ripe(self, entries: Sequence[tuple[str, float]], now: float) -> list[str]:
        """Return the closings whose lines can be checked now.

        Either this process has known them for long enough, whatever the clocks say, or they are overdue by
        more than clocks differ.
        """
        with self._lock:
            known_for = {item_id: self._known_for.get(item_id) or ElapsedTime() for item_id, _due in entries}
            self._known_for = known_for
        return [
            item_id
            for item_id, due in entries
            if due + MAX_CLOCK_SKEW_SECONDS <= now
            or known_for[item_id].seconds() >= RULES.recheck_after_seconds
        ]

    def announce_again(self, queue: str, lines: Sequence[Line], now: float) -> list[Line]:
        """Write the records of closed lines that have live tasks; return these lines."""
        working = self.with_work(queue, lines, now)
        for line in working:
            self._calls.put(line_record(queue, line, now, now + LONGEST_DEADLINE_SECONDS))
        return working

    def with_work(self, queue: str, lines: Sequence[Line], now: float) -> list[Line]:
        """Return the lines with live tasks; it queries each line at least once."""

        def has_work(line: Line) -> bool:
            return any(live.may_have_any() for live in self._partitions.live(queue, [line], 0.0, now))

        return list(compress(lines, each_in_threads(has_work, lines)))


@dataclass(slots=True)
class _EmptyLine:
    """A line that was found empty, by monotonic times in seconds.

    Attributes:
        since: When it was found empty first.
        seen: When it was found empty last.
        drained_here: Whether this process took its last task.
    """

    since: float
    seen: float
    drained_here: bool


class KnownLines:
    """The lines of one queue that one process knows. Not thread-safe."""

    def __init__(self) -> None:
        # Each known line is in exactly one of the three states below; here by when it was announced.
        self._announced_at: dict[Line, float] = {}
        # Their keys, sorted. A list, because functions on Lambda start without the package of sorted sets.
        self._open: list[str] = []
        self._empty: OrderedDict[Line, _EmptyLine] = OrderedDict()
        self._closing: dict[Line, _EmptyLine] = {}
        # Lines that this process closed, until a listing looks into them; by monotonic times in seconds.
        self._closed: dict[Line, float] = {}
        # Processes that know the same lines begin at different ones.
        self._salt = uuid.uuid4().int

    def lines(self) -> list[Line]:
        """Return the lines that may have tasks, the empty ones included."""
        return [line for line in self._announced_at if line not in self._closing]

    def announced(self, lines: Sequence[tuple[Line, float]]) -> None:
        """Note line records and when each was written; known records change nothing."""
        for line, at in lines:
            if self._announced_at.get(line) != at:
                self.may_have_work(line)
                self._announced_at[line] = at

    def may_have_work(self, line: Line) -> None:
        """Note that a line may have tasks."""
        self._announced_at.setdefault(line, 0.0)
        self._empty.pop(line, None)
        self._closing.pop(line, None)
        key = line.key
        place = bisect_left(self._open, key)
        if self._open[place : place + 1] != [key]:
            self._open.insert(place, key)

    def between(self, after: str, until: str, *, reverse: bool = False) -> Iterator[str]:
        """Yield the keys of open lines that follow a key and precede another; from the last if `reverse`."""
        places = range(*self._places(after, until))
        return map(self._open.__getitem__, reversed(places) if reverse else places)

    def begin(self, after: str, until: str) -> str:
        """Return an open line between two keys, another one for each process; `after` if there is none."""
        first, end = self._places(after, until)
        return self._open[first + self._salt % (end - first)] if first < end else after

    def _places(self, after: str, until: str) -> tuple[int, int]:
        """Return the place of the first open line between two keys, and of the first that is not."""
        return bisect_right(self._open, after), bisect_left(self._open, until)

    def look_again(self) -> None:
        """Make the check of each line found empty or closed due, however recently it was checked."""
        for empty in self._empty.values():
            empty.seen = NEVER
        self._closed = dict.fromkeys(self._closed, NEVER)

    def has_many_empty(self) -> bool:
        """Return whether there are more lines found empty than a claim checks."""
        return len(self._empty) > EMPTY_CHECKS

    def due_checks(self, count: int, now: float) -> list[Line]:
        """Return up to `count` lines found empty that are due for another check at a monotonic time."""
        return [
            line
            for line, empty in islice(self._empty.items(), count)
            if now - empty.seen >= EMPTY_CHECK_SECONDS
        ]

    def drained(self, line: Line, now: float, *, quiet: bool) -> None:
        """Note that this process took the last task of a line at a monotonic time; `quiet`: no recent put."""
        if line in self._announced_at:
            self._note_empty(line, now, drained_here=True, close=quiet)

    def found_empty(self, line: Line, now: float) -> None:
        """Note that a line has no claimable task at `now`, a monotonic time in seconds."""
        if line in self._announced_at:
            empty = self._empty.get(line)
            close = empty is not None and now - empty.since >= QUIET_SECONDS
            self._note_empty(line, now, drained_here=False, close=close)

    def _note_empty(self, line: Line, now: float, *, drained_here: bool, close: bool) -> None:
        key = line.key
        place = bisect_left(self._open, key)
        if self._open[place : place + 1] == [key]:
            del self._open[place]
        empty = (
            self._empty.pop(line, None) or self._closing.pop(line, None) or _EmptyLine(now, now, drained_here)
        )
        empty.seen = now
        empty.drained_here |= drained_here
        (self._closing if close else self._empty)[line] = empty

    def to_close(self, least: int, most: int, now: float) -> dict[Line, bool]:
        """Return up to `most` lines to close at a monotonic time, if there are at least `least`.

        Returns:
            For each line, whether this process took its last task.
        """
        outdated = [line for line, empty in self._closing.items() if now - empty.seen > OUTDATED_SECONDS]
        for line in outdated:
            self._empty[line] = self._closing.pop(line)
            self._empty.move_to_end(line, last=False)
        if len(self._closing) < least:
            return {}
        return {line: empty.drained_here for line, empty in islice(self._closing.items(), most)}

    def closed(self, lines: Iterable[Line], closed_here: Iterable[Line], now: float) -> None:
        """Forget lines without records, unless they were announced again in between.

        Args:
            lines: The lines.
            closed_here: Those whose records this process has deleted.
            now: Monotonic time in seconds.
        """
        for line in lines:
            if self._closing.pop(line, None) is not None:
                del self._announced_at[line]
        self._closed |= dict.fromkeys(closed_here, now)

    def closed_before(self, moment: float) -> list[Line]:
        """Return lines that were closed before a monotonic time, each once, unless they are known again.

        If there are many, only the last ones: their upkeep looks into all.
        """
        lines = [line for line, at in self._closed.items() if at <= moment]
        for line in lines:
            del self._closed[line]
        return [line for line in lines if line not in self._announced_at][-CLOSING_LINES:]


class _Check(NamedTuple):
    """A producer's check of the record of a line.

    Attributes:
        since: The time since it began.
        deadline: A task with this deadline was put; the record stays for a day longer.
    """

    since: ElapsedTime
    deadline: float


@dataclass
class _QueueLines:
    """The lines of one queue, as far as this process knows them."""

    listing: LineListing
    known: KnownLines = field(default_factory=KnownLines)
    checks: OrderedDict[Line, _Check] = field(default_factory=OrderedDict)
    # Only a process that claims needs to know the lines, and finds them empty: by this clock.
    is_claimed: bool = False
    clock: Callable[[], float] = time.time
    next_recheck: float = field(default_factory=lambda: time.monotonic() + CLAIM_RECHECK_SECONDS)


class LineRecords:
    """The lines of groups, known from this process's puts and from the line records. Thread-safe."""

    def __init__(self, control: ControlRecords, partitions: Partitions) -> None:
        self._calls = partitions.calls
        self._control = control
        self._closings = LineClosings(partitions)
        self._lock = new_lock()
        self._queues: dict[str, _QueueLines] = {}

    def announce(self, tasks: Iterable[Task]) -> None:
        """Make claimers look into the lines of tasks that are about to be put.

        Raises:
            StoreError: If the store did not answer.
        """
        grouped: defaultdict[str, dict[Line, Task]] = defaultdict(dict)
        for task in tasks:
            line = Line.of(task)
            if not has_record(line):
                self._control.use_level(task.queue, task.priority)
                continue
            latest = grouped[task.queue].setdefault(line, task)
            if task.stale_at > latest.stale_at:
                grouped[task.queue][line] = task
        for queue, lines in grouped.items():
            self._control.use_groups(queue)
            for _ in range(MAX_LOOKS):
                if not (old := {line: task for line, task in lines.items() if not self._may_put(task)}):
                    break
                self._check(queue, old)

    @contextmanager
    def announcing(self, task: Task) -> Iterator[None]:
        """Announce the line of a task before a block puts it, and again afterwards if the put took long.

        Raises:
            StoreError: If the store did not answer.
        """
        line = Line.of(task)
        self.announce([task])
        try:
            yield
        finally:
            with self._lock:
                check = self._of(task.queue).checks.get(line)
            if has_record(line) and (check is None or RULES.put_was_late(check.since.seconds())):
                self._check(task.queue, {line: task})

    def _may_put(self, task: Task) -> bool:
        """Return whether the record of a task's line was seen recently; note that the line has work."""
        line = Line.of(task)
        with self._lock:
            of = self._of(task.queue)
            check = of.checks.get(line)
            if (
                check is None
                or not RULES.may_put(check.since.seconds())
                or task.stale_at > check.deadline + TTL_MARGIN_SECONDS / 2
            ):
                return False
            if of.is_claimed:
                of.known.may_have_work(line)
        return True

    def _check(self, queue: str, lines: dict[Line, Task]) -> None:
        """Read the records of the lines that tasks are about to enter, and write the missing ones."""
        since = ElapsedTime()
        records = {item["taskId"]["S"]: item for item in self._calls.get_many(self._ids(queue, lines))}
        missing = [
            line_record(queue, line, task.updated, task.stale_at)
            for line, task in lines.items()
            if not outlasts(records.get(record_id(queue, line), {}), task.stale_at)
        ]
        each_in_threads(self._calls.put, missing)
        with self._lock:
            of = self._of(queue)
            for line, task in lines.items():
                of.checks[line] = _Check(since, task.stale_at)
                of.checks.move_to_end(line)
                if of.is_claimed:
                    of.known.may_have_work(line)
            while len(of.checks) > MAX_CHECKS:
                of.checks.popitem(last=False)

    def view(
        self, queue: str, clock: Callable[[], float]
    ) -> tuple[list[str], AbstractContextManager[Any], KnownLines | None]:
        """Return the lines that may have claimable tasks now: keys to look into, and the lines of groups.

        The keys are those of tasks without a group, and of lines found empty that are due for a check;
        ascending. The lines of groups come with their lock; None if no group was ever used.

        Args:
            queue: Name of the queue.
            clock: Returns the time in seconds since the epoch.
        """
        control = self._control.read(queue)
        keys = [str(level) for level in control.levels]
        known = None
        if control.grouped:
            with self._lock:
                self._of(queue).clock = clock
            self._list(queue, clock)
            with self._lock:
                known = self._of(queue).known
                keys += [line.key for line in known.due_checks(EMPTY_CHECKS, time.monotonic())]
        return sorted(keys), self._lock, known

    def reread(self, queue: str) -> None:
        """Read the levels of a queue; have the next call read the announced lines, and check empty ones."""
        self._control.read(queue, anew=True)
        with self._lock:
            of = self._of(queue)
            of.listing.try_again()
            of.known.look_again()

    def all_lines(self, queue: str, now: float) -> list[Line]:
        """Return the lines that may have claimable tasks, including lines found empty."""
        control = self._control.read(queue)
        lines = [Line(level) for level in control.levels]
        if control.grouped:
            self._list(queue, lambda: now)
            with self._lock:
                lines += self._of(queue).known.lines()
        return lines

    def _list(self, queue: str, clock: Callable[[], float]) -> None:
        """Refresh the list of announced lines, at most once a second."""
        moment = time.monotonic()
        with self._lock:
            of = self._of(queue)
            of.is_claimed = True
            if not of.listing.is_due(moment):
                return
        try:
            listed = of.listing.read(clock(), moment)
        except StoreError:
            of.listing.try_again()
            raise
        with self._lock:
            of.known.announced(listed)
            has_many_empty = of.known.has_many_empty()
            closed = of.known.closed_before(moment - EMPTY_CHECK_SECONDS)
        try:
            for line in self._closings.announce_again(queue, closed, clock()) if closed else ():
                with self._lock:
                    of.known.may_have_work(line)
            if has_many_empty:
                self._check_again(queue, LISTED_CHECKS)
        except StoreError:  # the claim still serves the lines that may have work
            logger.warning("queue %r: its empty lines are checked later", queue, exc_info=True)

    def close_empty(self, queue: str, least: int) -> None:
        """Delete the records of up to `CLOSING_LINES` empty lines, if there are at least `least`.

        If the store does not answer, a later call does it.

        Args:
            queue: Name of the queue.
            least: Fewest lines.
        """
        with self._lock:
            if (of := self._queues.get(queue)) is None:
                return
            closing = of.known.to_close(least, CLOSING_LINES, time.monotonic())
        if not closing:
            return
        try:
            self._close(queue, closing, of.clock)
        except StoreError:
            logger.warning("the records of %d empty lines stay for now", len(closing), exc_info=True)

    def _close(self, queue: str, closing: dict[Line, bool], clock: Callable[[], float]) -> None:
        # The process that took the last task also deletes the record, unless it died.
        doubtful = [line for line, drained_here in closing.items() if not drained_here]
        present = {item["taskId"]["S"] for item in self._calls.get_many(self._ids(queue, doubtful))}
        lines = [line for line, drained in closing.items() if drained or record_id(queue, line) in present]
        if not lines or self._closings.close(queue, lines, clock):
            with self._lock:
                of = self._of(queue)
                of.known.closed(closing, lines, time.monotonic())
                for line in lines:
                    of.checks.pop(line, None)

    def tidy(self, queue: str, now: float, limit: int) -> int:
        """Recheck the lines that were found empty and the lines whose closing is due.

        Args:
            queue: Name of the queue.
            now: Current time in seconds.
            limit: Maximum number of lines.

        Returns:
            Number of closed lines checked.

        Raises:
            StoreError: If the store did not answer.
        """
        if not self._control.read(queue).grouped:
            return 0
        self._check_again(queue, limit)
        return self._closings.recheck(queue, now, limit)

    def tidy_in_claim(self, queue: str, now: float) -> int:
        """Recheck lines whose closing is due at a time in seconds, at most once a second.

        Returns:
            How many closed lines were looked into.

        Raises:
            StoreError: If the store did not answer whether the queue has groups.
        """
        if not self._control.read(queue).grouped:
            return 0
        moment = time.monotonic()
        with self._lock:
            of = self._of(queue)
            if moment < of.next_recheck:
                return 0
            of.next_recheck = moment + CLAIM_RECHECK_SECONDS
        try:
            return self._closings.recheck(queue, now, CLOSING_LINES)
        except StoreError:  # whatever the claim finds is served
            logger.warning("queue %r: its closed lines are checked later", queue, exc_info=True)
            return 0

    def _check_again(self, queue: str, limit: int) -> None:
        """Recheck up to `limit` lines that this process found empty; close the empty ones.

        It does so in portions, so that a table which throttles some of the reads still makes progress.
        """
        for start in range(0, limit, CLOSING_LINES):
            with self._lock:
                known, clock = (of := self._of(queue)).known, of.clock
                lines = known.due_checks(min(limit - start, CLOSING_LINES), time.monotonic())
            working = set(self._closings.with_work(queue, lines, clock()))
            with self._lock:
                for line in lines:
                    if line in working:
                        known.may_have_work(line)
                    else:
                        known.found_empty(line, time.monotonic())
            self.close_empty(queue, 1)

    def _ids(self, queue: str, lines: Iterable[Line]) -> list[str]:
        return [record_id(queue, line) for line in lines]

    def _of(self, queue: str) -> _QueueLines:
        """Return the known lines of a queue. Call it under the lock."""
        if queue not in self._queues:
            self._queues[queue] = _QueueLines(LineListing(self._calls, queue))
        return self._queues[queue]
