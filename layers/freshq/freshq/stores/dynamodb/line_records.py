"""The lines of a queue in the table: which groups may have work.

The tasks of each group wait in index partitions of their own, so that newest first holds within the group
and no task hides behind those of another. A put announces its line by a line record, unless this process
did so recently. Claimers list the line records every second, and leave out the lines that they found empty
since the last announcement.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final

from freshq.errors import StoreError
from freshq.model.new_task import RESERVED_ID_PREFIX
from freshq.stores.dynamodb.items import milliseconds, new_request_token
from freshq.stores.dynamodb.queries import due_later

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from freshq.model.task import Task
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.control import ControlRecords
    from freshq.stores.dynamodb.names import Item
    from freshq.stores.lines import Line

logger = logging.getLogger(__name__)

LINE_PREFIX: Final = f"{RESERVED_ID_PREFIX}line#"
# A process that keeps putting into a line announces it again after this time.
ANNOUNCE_SECONDS: Final = 30.0
# Claimers list the lines, and look again into an empty one, at most once in these times.
LIST_SECONDS: Final = 1.0
EMPTY_LOOK_SECONDS: Final = 0.5
# From the last put that relies on an announcement until every claimer has seen its task in the index.
LAG_SECONDS: Final = 5.0
NEVER: Final = float("-inf")


@dataclass(slots=True)
class _KnownLine:
    """What a process knows about a line. Times but the first are monotonic.

    Attributes:
        listed_until: `dueAt` of its record as read or written; changes with each announcement.
        opened_at: When that change was noticed.
        announced_at: When this process announced the line.
        next_look: When to look again after it was found empty.
        closed: Whether it was found empty after all puts that rely on the announcement.
    """

    listed_until: float
    opened_at: float
    announced_at: float = NEVER
    next_look: float = NEVER
    closed: bool = False

    def needs_announcement(self, task: Task, now: float) -> bool:
        """Return whether a task that is put into the line must announce it."""
        return now - self.announced_at >= ANNOUNCE_SECONDS or self.listed_until < task.deadline

    def is_worth_a_look(self, now: float) -> bool:
        """Return whether the line may have claimable tasks."""
        return not self.closed and now >= self.next_look


class LineRecords:
    """The lines of groups, known from this process's puts and from the line records. Thread-safe."""

    def __init__(self, calls: TableCalls, control: ControlRecords) -> None:
        """Know no line yet."""
        self._calls = calls
        self._control = control
        self._lock = threading.Lock()
        self._known: dict[tuple[str, Line], _KnownLine] = {}
        self._listed_at: dict[str, float] = {}

    def announce(self, task: Task) -> None:
        """Make claimers look into the line of a task that is about to be put."""
        if task.group is None:
            self._control.use_level(task.queue, task.priority)
            return
        self._control.use_groups(task.queue)
        key = (task.queue, (task.priority, task.group))
        now = time.monotonic()
        with self._lock:
            known = self._known.get(key)
            if known is not None and not known.needs_announcement(task, now):
                known.closed, known.next_look = False, NEVER
                return
        until = task.deadline + ANNOUNCE_SECONDS + LAG_SECONDS
        self._calls.put(_line_record(task.queue, (task.priority, task.group), until))
        with self._lock:
            self._known[key] = _KnownLine(until, now, now)

    def lines(self, queue: str, now: float) -> list[Line]:
        """Return the lines that may have claimable tasks.

        Args:
            queue: Name of the queue.
            now: Current time of the queue's clock, in seconds.
        """
        moment = time.monotonic()
        return self._lines(queue, now, lambda known: known.is_worth_a_look(moment))

    def all_lines(self, queue: str, now: float) -> list[Line]:
        """Return the lines that may have claimable tasks, and those that were found empty."""
        return self._lines(queue, now, lambda _known: True)

    def _lines(self, queue: str, now: float, wanted: Callable[[_KnownLine], bool]) -> list[Line]:
        control = self._control.read(queue)
        lines: list[Line] = [(level, None) for level in control.levels]
        if control.grouped:
            self._list(queue, now)
            with self._lock:
                lines += [line for (of, line), known in self._known.items() if of == queue and wanted(known)]
        return lines

    def found_empty(self, queue: str, line: Line) -> None:
        """Take note that a line has no claimable task."""
        now = time.monotonic()
        with self._lock:
            known = self._known.get((queue, line))
            if known is not None:
                known.next_look = now + EMPTY_LOOK_SECONDS
                known.closed = now > known.opened_at + ANNOUNCE_SECONDS + LAG_SECONDS

    def _list(self, queue: str, now: float) -> None:
        """Read the line records, unless that was done within `LIST_SECONDS`."""
        moment = time.monotonic()
        with self._lock:
            if moment - self._listed_at.get(queue, NEVER) < LIST_SECONDS:
                return
            self._listed_at[queue] = moment
        try:
            listed = {
                line: until
                for record_id, until in due_later(self._calls, _partition(queue), now)
                if (line := _line_of(record_id, queue)) is not None
            }
        except StoreError:
            with self._lock:
                del self._listed_at[queue]
            raise
        with self._lock:
            self._open(queue, listed, moment)
            self._drop_unlisted(queue, listed, now)

    def _open(self, queue: str, listed: Mapping[Line, float], moment: float) -> None:
        """Take note of the lines that were announced since the last listing."""
        for line, until in listed.items():
            known = self._known.get((queue, line))
            if known is None or known.listed_until < until:
                announced_at = NEVER if known is None else known.announced_at
                self._known[queue, line] = _KnownLine(until, moment, announced_at)

    def _drop_unlisted(self, queue: str, listed: Mapping[Line, float], now: float) -> None:
        """Forget the lines whose record has expired."""
        expired = [
            key
            for key, known in self._known.items()
            if key[0] == queue and key[1] not in listed and known.listed_until <= now
        ]
        for key in expired:
            del self._known[key]


def _partition(queue: str) -> str:
    return f"{queue}#LINES"


def _line_record(queue: str, line: Line, until: float) -> Item:
    level, group = line
    return {
        "taskId": {"S": f"{LINE_PREFIX}{queue}#{level}#{group}"},
        "dueShard": {"S": _partition(queue)},
        "dueAt": milliseconds(until),
        "ttl": {"N": str(ceil(until))},
        "requestToken": {"S": new_request_token()},
    }


def _line_of(record_id: str, queue: str) -> Line | None:
    """Return the line of a record; None if its id names none."""
    level, _, group = record_id.removeprefix(f"{LINE_PREFIX}{queue}#").partition("#")
    if not level.isdigit():
        logger.warning("left out: line record %s names no line", record_id)
        return None
    return int(level), group
