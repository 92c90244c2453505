"""The lines of a queue in the table: which groups may have work, and what waits in a line.

A group's tasks wait in index partitions of their own, so that newest first holds within the group and
none of them hides behind those of another. Which groups there are is told by line records: a put
writes one for its group, unless this process did so lately. Claimers list them every second, and leave
out the lines that they found empty since the last put was announced.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final

from freshq.errors import StoreError
from freshq.model.new_task import RESERVED_ID_PREFIX
from freshq.stores.dynamodb.items import milliseconds, new_request_token, seconds
from freshq.stores.dynamodb.schema import DUE_INDEX

if TYPE_CHECKING:
    from freshq.model.task import Task
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.control import ControlRecords
    from freshq.stores.dynamodb.names import Item
    from freshq.stores.lines import Line

LINE_PREFIX: Final = f"{RESERVED_ID_PREFIX}line#"
# A process that keeps putting into a line announces it again so often.
ANNOUNCE_SECONDS: Final = 30.0
# Claimers list the lines so often, and look no more often into one that was empty.
LIST_SECONDS: Final = 1.0
EMPTY_LOOK_SECONDS: Final = 0.5
# From the last put that an announcement stands for until every claimer has seen it in the index.
LAG_SECONDS: Final = 5.0


@dataclass(slots=True)
class _Known:
    """What a process knows of a line.

    Attributes:
        listed_until: `dueAt` of its record, as it was read or written; changes when it is announced.
        opened_at: When that was noticed, on the monotonic clock.
        announced_at: When this process announced it.
        next_look: When it is worth looking again, after it was found empty.
        closed: Whether it was found empty after all puts that the announcement stands for.
    """

    listed_until: float
    opened_at: float
    announced_at: float = float("-inf")
    next_look: float = float("-inf")
    closed: bool = False


class LineRecords:
    """The groups' lines, by what this process put and what the records say. Thread-safe."""

    def __init__(self, calls: TableCalls, control: ControlRecords) -> None:
        """Know no line yet."""
        self._calls = calls
        self._control = control
        self._lock = threading.Lock()
        self._known: dict[tuple[str, Line], _Known] = {}
        self._listed_at: dict[str, float] = {}

    def announce(self, task: Task) -> None:
        """Make sure that claimers look into the line of a task that is about to wait in it."""
        if task.group is None:
            self._control.use_level(task.queue, task.priority)
            return
        self._control.use_groups(task.queue)
        key = (task.queue, (task.priority, task.group))
        now = time.monotonic()
        with self._lock:
            known = self._known.get(key)
            if known is not None and now - known.announced_at < ANNOUNCE_SECONDS:
                fresh = known.listed_until >= task.deadline
                known.closed, known.next_look = False, float("-inf")
                if fresh:
                    return
        until = task.deadline + ANNOUNCE_SECONDS + LAG_SECONDS
        self._calls.put(_line_record(task.queue, (task.priority, task.group), until))
        with self._lock:
            self._known[key] = _Known(until, now, now)

    def lines(self, queue: str, now: float, *, all_of_them: bool = False) -> list[Line]:
        """Return the lines that may have work.

        Args:
            queue: Name of the queue.
            now: Current time of the queue's clock, in seconds.
            all_of_them: Whether to return those too that were found empty.
        """
        control = self._control.read(queue)
        lines: list[Line] = [(level, None) for level in control.levels]
        if not control.grouped:
            return lines
        self._list(queue, now)
        moment = time.monotonic()
        with self._lock:
            return lines + [
                line
                for (of, line), known in self._known.items()
                if of == queue and (all_of_them or (not known.closed and moment >= known.next_look))
            ]

    def found_empty(self, queue: str, line: Line) -> None:
        """Take note that nothing waits in a line."""
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
            if moment - self._listed_at.get(queue, float("-inf")) < LIST_SECONDS:
                return
            self._listed_at[queue] = moment
        try:
            listed = dict(self._read(queue, now))
        except StoreError:
            with self._lock:
                del self._listed_at[queue]
            raise
        with self._lock:
            for line, until in listed.items():
                known = self._known.get((queue, line))
                if known is None or known.listed_until < until:
                    announced_at = float("-inf") if known is None else known.announced_at
                    self._known[queue, line] = _Known(until, moment, announced_at)
            gone = [
                key
                for key, known in self._known.items()
                if key[0] == queue and key[1] not in listed and known.listed_until <= now
            ]
            for key in gone:
                del self._known[key]

    def _read(self, queue: str, now: float) -> list[tuple[Line, float]]:
        arguments: Item = {
            "IndexName": DUE_INDEX,
            "KeyConditionExpression": "#dueShard = :shard AND #dueAt > :now",
            "ExpressionAttributeValues": {":shard": {"S": _shard(queue)}, ":now": milliseconds(now)},
        }
        found: list[tuple[Line, float]] = []
        while True:
            page = self._calls.query(arguments)
            found += [
                (_line_of(item["taskId"]["S"], queue), seconds(item["dueAt"])) for item in page["Items"]
            ]
            if "LastEvaluatedKey" not in page:
                return found
            arguments["ExclusiveStartKey"] = page["LastEvaluatedKey"]


def _shard(queue: str) -> str:
    return f"{queue}#LINES"


def _line_record(queue: str, line: Line, until: float) -> Item:
    level, group = line
    return {
        "taskId": {"S": f"{LINE_PREFIX}{queue}#{level}#{group}"},
        "dueShard": {"S": _shard(queue)},
        "dueAt": milliseconds(until),
        "ttl": {"N": str(ceil(until))},
        "requestToken": {"S": new_request_token()},
    }


def _line_of(record_id: str, queue: str) -> Line:
    level, _, group = record_id.removeprefix(f"{LINE_PREFIX}{queue}#").partition("#")
    return int(level), group
