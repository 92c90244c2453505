"""The lines of a queue in the table: which groups may have work.

The tasks of each group wait in index partitions of their own, so that newest first holds within the group
and no task hides behind those of another. A put makes sure that a line record announces its line. Claimers
list the line records, and take the record of a line away that they found empty; `line_rules` says why no task
is left behind.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from freshq.errors import StoreError
from freshq.stores.clocks import Stopwatch
from freshq.stores.dynamodb.known_lines import KnownLines
from freshq.stores.dynamodb.line_closings import CLOSING_LINES, LineClosings
from freshq.stores.dynamodb.line_items import TTL_MARGIN_SECONDS, line_record, outlasts, record_id
from freshq.stores.dynamodb.line_listing import LineListing
from freshq.stores.dynamodb.line_rules import RULES
from freshq.stores.dynamodb.puts import PUT_THREADS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from freshq.model.task import Task
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.control import ControlRecords
    from freshq.stores.dynamodb.keyspace import Keyspace
    from freshq.stores.lines import Line

logger = logging.getLogger(__name__)

# Lines whose records a producer remembers to have seen.
MAX_CHECKS: Final = 10_000
# How many closed lines the upkeep within a claim looks into, and how often; the background does more.
CLAIM_RECHECKS: Final = 1
CLAIM_RECHECK_SECONDS: Final = 1.0


class _Check(NamedTuple):
    """A producer's look at the record of a line.

    Attributes:
        since: The time since it began.
        deadline: A task with this deadline was put; the record stays for a day longer.
    """

    since: Stopwatch
    deadline: float


@dataclass
class _QueueLines:
    """What this process knows about the lines of one queue."""

    listing: LineListing
    known: KnownLines = field(default_factory=KnownLines)
    checks: OrderedDict[Line, _Check] = field(default_factory=OrderedDict)
    # Only a process that claims needs to know the lines.
    is_claimed: bool = False
    next_recheck: float = field(default_factory=lambda: time.monotonic() + CLAIM_RECHECK_SECONDS)


class LineRecords:
    """The lines of groups, known from this process's puts and from the line records. Thread-safe."""

    def __init__(self, calls: TableCalls, control: ControlRecords, keyspace: Keyspace) -> None:
        self._calls = calls
        self._control = control
        self._closings = LineClosings(calls, keyspace)
        self._lock = threading.Lock()
        self._queues: dict[str, _QueueLines] = {}

    def announce(self, tasks: Iterable[Task]) -> None:
        """Make claimers look into the lines of tasks that are about to be put.

        Raises:
            StoreError: If the store did not answer.
        """
        grouped: defaultdict[str, dict[Line, Task]] = defaultdict(dict)
        for task in tasks:
            if task.group is None:
                self._control.use_level(task.queue, task.priority)
                continue
            latest = grouped[task.queue].setdefault((task.priority, task.group), task)
            if task.deadline > latest.deadline:
                grouped[task.queue][task.priority, task.group] = task
        for queue, lines in grouped.items():
            self._control.use_groups(queue)
            self._check(queue, {line: task for line, task in lines.items() if not self._may_put(task)})

    @contextmanager
    def announcing(self, task: Task) -> Iterator[None]:
        """Put a task within the block. Its line is announced before, and after if the put took long.

        Raises:
            StoreError: If the store did not answer.
        """
        self.announce([task])
        try:
            yield
        finally:
            if task.group is not None:
                self._check_late(task, (task.priority, task.group))

    def _check_late(self, task: Task, line: Line) -> None:
        with self._lock:
            check = self._of(task.queue).checks.get(line)
        if check is None or RULES.put_was_late(check.since.seconds()):
            self._check(task.queue, {line: task})

    def _may_put(self, task: Task) -> bool:
        """Return whether the record of a task's line was seen lately; the line has work again."""
        line = (task.priority, task.group)
        with self._lock:
            of = self._of(task.queue)
            check = of.checks.get(line)
            if (
                check is None
                or not RULES.may_put(check.since.seconds())
                or task.deadline > check.deadline + TTL_MARGIN_SECONDS / 2
            ):
                return False
            if of.is_claimed:
                of.known.may_have_work(line)
        return True

    def _check(self, queue: str, lines: dict[Line, Task]) -> None:
        """Read the records of lines into which tasks are put, and write those that are missing."""
        if not lines:
            return
        since = Stopwatch()
        records = {item["taskId"]["S"]: item for item in self._calls.get_many(self._ids(queue, lines))}
        missing = [
            line_record(queue, line, task.updated, task.deadline)
            for line, task in lines.items()
            if not outlasts(records.get(record_id(queue, line), {}), task.deadline)
        ]
        if len(missing) > 1:
            with ThreadPoolExecutor(PUT_THREADS, thread_name_prefix="freshq-lines") as pool:
                list(pool.map(self._calls.put, missing))  # raises the error of a put
        elif missing:
            self._calls.put(missing[0])
        with self._lock:
            of = self._of(queue)
            for line, task in lines.items():
                of.checks[line] = _Check(since, task.deadline)
                of.checks.move_to_end(line)
                if of.is_claimed:
                    of.known.may_have_work(line)
            while len(of.checks) > MAX_CHECKS:
                of.checks.popitem(last=False)

    def window(self, queue: str, now: float, count: int) -> list[Line]:
        """Return the lines that a claim of `count` tasks looks into.

        Args:
            queue: Name of the queue.
            now: Current time of the queue's clock, in seconds.
            count: How many tasks are wanted.
        """
        control = self._control.read(queue)
        lines: list[Line] = [(level, None) for level in control.levels]
        if control.grouped:
            self._list(queue, now)
            with self._lock:
                lines += self._of(queue).known.window(count, time.monotonic())
        return lines

    def all_lines(self, queue: str, now: float) -> list[Line]:
        """Return the lines that may have claimable tasks, and those that were found empty."""
        control = self._control.read(queue)
        lines: list[Line] = [(level, None) for level in control.levels]
        if control.grouped:
            self._list(queue, now)
            with self._lock:
                lines += self._of(queue).known.lines()
        return lines

    def _list(self, queue: str, now: float) -> None:
        """Read what was announced lately, unless that was done just now."""
        moment = time.monotonic()
        with self._lock:
            of = self._of(queue)
            of.is_claimed = True
            if not of.listing.is_due(moment):
                return
        try:
            listed = of.listing.read(now, moment)
        except StoreError:
            of.listing.try_again()
            raise
        with self._lock:
            of.known.announced(listed)

    def served(self, queue: str, line: Line) -> None:
        """Note that tasks of a line were claimed, or may be, and more may wait."""
        with self._lock:
            self._of(queue).known.served(line)

    def drained(self, queue: str, line: Line, *, quiet: bool) -> None:
        """Note that this process took the last task of a line; `quiet` if none was put lately."""
        with self._lock:
            self._of(queue).known.drained(line, time.monotonic(), quiet=quiet)

    def found_empty(self, queue: str, line: Line) -> None:
        """Note that a line has no claimable task."""
        with self._lock:
            self._of(queue).known.found_empty(line, time.monotonic())

    def close_empty(self, queue: str, now: float, least: int) -> None:
        """Take the records of up to `CLOSING_LINES` empty lines away, if there are at least `least`.

        If the store does not answer, a later call does it.
        """
        with self._lock:
            closing = self._of(queue).known.to_close(least, CLOSING_LINES, time.monotonic())
        if not closing:
            return
        try:
            self._close(queue, closing, now)
        except StoreError:
            logger.warning("the records of %d empty lines stay for now", len(closing), exc_info=True)

    def _close(self, queue: str, closing: dict[Line, bool], now: float) -> None:
        # Whoever took the last task takes the record away as well, unless that process died.
        doubtful = [line for line, drained_here in closing.items() if not drained_here]
        present = {item["taskId"]["S"] for item in self._calls.get_many(self._ids(queue, doubtful))}
        lines = [line for line, drained in closing.items() if drained or record_id(queue, line) in present]
        if not lines or self._closings.close(queue, lines, now):
            with self._lock:
                of = self._of(queue)
                of.known.closed(closing)
                for line in lines:
                    of.checks.pop(line, None)

    def tidy(self, queue: str, now: float, limit: int) -> int:
        """Look again into lines that were found empty, and into those whose closing is due.

        Args:
            queue: Name of the queue.
            now: Current time in seconds.
            limit: Maximum number of lines.

        Returns:
            How many closed lines were looked into.

        Raises:
            StoreError: If the store did not answer.
        """
        if not self._control.read(queue).grouped:
            return 0
        self._check_again(queue, now, limit)
        return self._closings.recheck(queue, now, limit)

    def tidy_in_claim(self, queue: str, now: float) -> int:
        """Look again into a line whose closing is due, at most once a second.

        Args:
            queue: Name of the queue.
            now: Current time in seconds.

        Returns:
            How many closed lines were looked into.

        Raises:
            StoreError: If the store did not answer.
        """
        if not self._control.read(queue).grouped:
            return 0
        moment = time.monotonic()
        with self._lock:
            of = self._of(queue)
            if moment < of.next_recheck:
                return 0
            of.next_recheck = moment + CLAIM_RECHECK_SECONDS
        return self._closings.recheck(queue, now, CLAIM_RECHECKS)

    def _check_again(self, queue: str, now: float, limit: int) -> None:
        """Look again into up to `limit` lines that this process found empty, and close what is."""
        with self._lock:
            lines = self._of(queue).known.due_checks(limit, time.monotonic())
        working = set(self._closings.with_work(queue, lines, now))
        with self._lock:
            known, moment = self._of(queue).known, time.monotonic()
            for line in lines:
                if line in working:
                    known.may_have_work(line)
                else:
                    known.found_empty(line, moment)
        for _ in range(0, limit, CLOSING_LINES):
            self.close_empty(queue, now, 1)

    def _ids(self, queue: str, lines: Iterable[Line]) -> list[str]:
        return [record_id(queue, line) for line in lines]

    def _of(self, queue: str) -> _QueueLines:
        """Return what is known about a queue; only under the lock."""
        if queue not in self._queues:
            self._queues[queue] = _QueueLines(LineListing(self._calls, queue))
        return self._queues[queue]
