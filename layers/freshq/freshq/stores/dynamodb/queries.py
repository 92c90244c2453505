"""Queries of the two indexes, and scans of the table."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from freshq.model.forks import new_lock
from freshq.stores.base import MOST_STALE
from freshq.stores.clocks import steady_seconds
from freshq.stores.dynamodb.items import is_task, milliseconds, seconds, times
from freshq.stores.dynamodb.schema import (
    CREATED_ATTRIBUTE,
    DUE_INDEX,
    STATUS_INDEX,
    STATUS_INDEX_ATTRIBUTE,
    IndexEntry,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.items import Keyspace
    from freshq.stores.dynamodb.schema import Item
    from freshq.stores.lines import Line

# How long claims with a plan use what they have read of a short line.
HEADS_SECONDS: Final = 1.0
# Lines that a process remembers: more than one plan considers.
MAX_KNOWN_LINES: Final = 2_000
# Spare keys to read, as other claimers may take tasks first. Thirty keys of about 110 bytes still cost half
# a read unit, the minimum of a query.
LOOKAHEAD_KEYS: Final = 19
# Pages that a claim reads of a partition.
MAX_PAGES: Final = 4
# Keys on the page that follows one of mostly stale tasks, and on those after that. The last is about the
# megabyte that DynamoDB reads at most per query.
LARGER_PAGES_KEYS: Final = (1_000, 8_000)
# A task may return to its line among stale tasks that queries have passed. After this time they start over.
RESUME_SECONDS: Final = 60.0
# Entries of the due index handled at a time.
DUE_PAGE_KEYS: Final = 25
# A queue, the key of a line, and whether it was read from its newest end.
LinePlace: TypeAlias = tuple[str, str, bool]
# By partition and whether the newest come first.
ResumeAt: TypeAlias = "dict[tuple[str, bool], tuple[Item, float]]"


@dataclass(frozen=True)
class StatusIndex:
    """How the claimable tasks of a table are indexed.

    Attributes:
        name: Name of the index.
        range_key: The attribute that orders its partitions.
    """

    name: str = STATUS_INDEX
    range_key: str = CREATED_ATTRIBUTE

    @cached_property
    def by_time(self) -> bool:
        """Whether the creation time orders it."""
        return self.range_key == CREATED_ATTRIBUTE

    def place(self, key: Item) -> Any:
        """Return the place of an entry in the order, comparable as DynamoDB compares it."""
        ((attribute_type, value),) = key[self.range_key].items()
        if self.by_time:
            return seconds(key[self.range_key])
        return Decimal(value) if attribute_type == "N" else value.encode() if attribute_type == "S" else value

    def entry(self, item: Item) -> IndexEntry:
        """Return an item of the index as an entry."""
        created = seconds(item[CREATED_ATTRIBUTE])
        place = created if self.by_time else self.place(item)
        return IndexEntry(place, created, item["taskId"]["S"], seconds(item[STATUS_INDEX_ATTRIBUTE]))


@dataclass(eq=False, slots=True)
class LineHeads:
    """The tasks of a line that a claim read whole.

    Attributes:
        read_at: When it began to read, in seconds.
        entries: Those of them that no claim has tried to take, by their ids; None until they are read.
    """

    read_at: float
    entries: dict[str, IndexEntry] | None = None


class KnownHeads:
    """The short lines that claims with a plan have read within the last second. Thread-safe.

    A plan may read every line, but only the tasks that it serves must still be there. So while everything can
    be served, a claim costs no query for each line. Tasks that this process puts are seen at once, those of
    others within `HEADS_SECONDS`, or as soon as a claim finds too few tasks.
    """

    def __init__(self) -> None:
        """Know no line."""
        self._lock = new_lock()
        self._lines: OrderedDict[LinePlace, LineHeads] = OrderedDict()

    def begin(self, place: LinePlace, now: float) -> LineHeads:
        """Note that a claim begins to read a line at a time in seconds; pass the answer to `keep`."""
        line = LineHeads(now)
        with self._lock:
            self._lines[place] = line
            self._lines.move_to_end(place)
            if len(self._lines) > MAX_KNOWN_LINES:
                self._lines.popitem(last=False)
        return line

    def keep(self, place: LinePlace, line: LineHeads, entries: Iterable[IndexEntry]) -> None:
        """Keep all tasks of a line, unless one was put since the claim began to read it."""
        with self._lock:
            if self._lines.get(place) is line:
                line.entries = {entry.task_id: entry for entry in entries}

    def of(self, place: LinePlace, now: float) -> list[IndexEntry] | None:
        """Return the tasks of a line; None if it must be read."""
        with self._lock:
            line = self._lines.get(place)
            if line is None or line.entries is None or not 0 <= now - line.read_at < HEADS_SECONDS:
                return None
            return [*line.entries.values()]

    def try_to_take(self, place: LinePlace, task_id: str) -> bool:
        """Return whether a task may be taken: False if another claim of this process has tried to."""
        with self._lock:
            line = self._lines.get(place)
            return line is None or line.entries is None or line.entries.pop(task_id, None) is not None

    def forget(self, queue: str, key: str) -> None:
        """Read a line again, as it has another task."""
        with self._lock:
            for newest_first in (True, False):
                self._lines.pop((queue, key, newest_first), None)


@dataclass(frozen=True, slots=True)
class KeysPage:
    """A page of live tasks of a partition.

    Attributes:
        entries: The tasks, in the order of the query.
        is_last: Whether the search reached the end.
        pages_left: How many more pages the search may read.
        passed_over: Number of stale tasks that the query also read.
    """

    entries: list[IndexEntry]
    is_last: bool
    pages_left: int
    passed_over: int


@dataclass(frozen=True, slots=True)
class LivePartition:
    """The tasks of a partition of the status index that are not stale.

    Attributes:
        name: Name of the partition.
        partitions: All of them.
        created_after: Tasks created at or before this time, in seconds, are past the queue's max age.
        deadline_after: Tasks with a deadline at or before this time are stale.
    """

    name: str
    partitions: Partitions
    created_after: float
    deadline_after: float

    def query(self, created: str = ">", deadline: str | None = ">") -> Item:
        """Return the arguments of a query of all of them, or of tasks on another side of the bounds.

        Args:
            created: How creation times compare with `created_after`.
            deadline: How deadlines compare with `deadline_after`; None: any deadline.
        """
        index = self.partitions.index
        keys: list[str] = ["#pendingShard = :shard"]
        filters: list[str] = []
        (keys if index.by_time else filters).append(f"#taskCreated {created} :created")
        bounds = {":created": self.created_after}
        if deadline is not None:
            filters.append(f"#deadline {deadline} :deadline")
            bounds[":deadline"] = self.deadline_after
        arguments: Item = {
            "IndexName": index.name,
            "KeyConditionExpression": " AND ".join(keys),
            "ExpressionAttributeValues": {":shard": {"S": self.name}, **times(bounds)},
        }
        return arguments | {"FilterExpression": " AND ".join(filters)} if filters else arguments

    def query_after(self, key: Item | None) -> Item:
        """Return the arguments of a query of those that follow a key, if it is in this partition."""
        arguments = self.query()
        if key is not None and key["pendingShard"]["S"] == self.name and self.may_begin_after(key):
            arguments["ExclusiveStartKey"] = key
        return arguments

    def may_begin_after(self, key: Item) -> bool:
        """Return whether a query can begin after a key: DynamoDB refuses a key outside its bounds."""
        index = self.partitions.index
        # DynamoDB compares times in whole microseconds; the bound is calculated and may lie between two.
        return not index.by_time or index.place(key) > seconds(milliseconds(self.created_after))

    def pages(self, limit: int, *, newest_first: bool, resumes: bool = False) -> Iterator[KeysPage]:
        """Yield them page by page.

        The number of pages is bounded. A page on which most tasks are stale is followed by a larger one.

        Args:
            limit: How many tasks are wanted. Pages are read as needed.
            newest_first: Which end comes first.
            resumes: Whether to continue, after the first page, where an earlier query ran out of pages.
        """
        calls, index = self.partitions.calls, self.partitions.index
        arguments = self.query() | {"ScanIndexForward": not newest_first, "Limit": limit + LOOKAHEAD_KEYS}
        resume_at, place = self.partitions.resume_at if resumes else {}, (self.name, newest_first)
        passed = _PassedTasks(self, newest_first, resume_at)
        larger = iter(LARGER_PAGES_KEYS)
        mostly_stale, only_stale = False, True
        for pages_left in reversed(range(MAX_PAGES)):
            page = calls.query(arguments)
            key, count, scanned = page.get("LastEvaluatedKey"), page["Count"], page["ScannedCount"]
            only_stale &= count == 0
            if key is None:
                resume_at.pop(place, None)
            elif only_stale:
                passed.until(key)  # now: the caller may need only one other page
            yield KeysPage(list(map(index.entry, page["Items"])), key is None, pages_left, scanned - count)
            if key is None:
                return
            mostly_stale = 2 * count < scanned
            if mostly_stale:
                arguments["Limit"] = max(arguments["Limit"], next(larger, LARGER_PAGES_KEYS[-1]))
                if "ExclusiveStartKey" not in arguments:
                    key = passed.further(key)
            arguments["ExclusiveStartKey"] = key
        if mostly_stale:
            passed.until(arguments["ExclusiveStartKey"])

    def oldest(self, limit: int) -> Iterator[tuple[float, str]]:
        """Yield their creation times and ids, oldest first.

        If time is the order, it reads as `pages` does, else the whole partition.
        """
        if self.partitions.index.by_time:
            entries = chain.from_iterable(page.entries for page in self.pages(limit, newest_first=False))
            return ((entry.created, entry.task_id) for entry in entries)
        return ((entry.created, entry.task_id) for entry in self._all())

    def first(self) -> list[IndexEntry]:
        """Return the oldest of them, about a page; if time is not the order, all of them."""
        if not self.partitions.index.by_time:
            return self._all()
        pages = self.pages(1, newest_first=False, resumes=True)
        return next((page.entries for page in pages if page.entries), [])

    def _all(self) -> list[IndexEntry]:
        """Return all of them, oldest first."""
        items = chain.from_iterable(page["Items"] for page in pages_of(self.partitions.calls, self.query()))
        return sorted(map(self.partitions.index.entry, items), key=attrgetter("created", "task_id"))

    def stale_page(self, start_after: Item | None) -> tuple[list[str], Item | None]:
        """Read one page of the tasks that are past their own deadline, but not past the queue's max age.

        Args:
            start_after: Key that an earlier call returned; None to begin.

        Returns:
            The ids, last first, and the key after which there may be more; None if there is no more.
        """
        arguments = self.query(deadline="<=") | {"ScanIndexForward": False, "Limit": LARGER_PAGES_KEYS[0]}
        if start_after is not None:
            if not self.may_begin_after(start_after):
                return [], None
            arguments["ExclusiveStartKey"] = start_after
        page = self.partitions.calls.query(arguments)
        return ids_of(page), page.get("LastEvaluatedKey")

    def may_have_any(self) -> bool:
        """Return whether there is one; True if finding out would take too many pages."""
        arguments = self.query() | {"ScanIndexForward": False}
        for limit in (LOOKAHEAD_KEYS, *LARGER_PAGES_KEYS):
            page = self.partitions.calls.query(arguments | {"Limit": limit})
            if page["Items"] or "LastEvaluatedKey" not in page:
                return bool(page["Items"])
            arguments["ExclusiveStartKey"] = page["LastEvaluatedKey"]
        return True

    def count(self, at_most: int) -> int:
        """Return their number, or `at_most` if there are more."""
        arguments = self.query() | {"Select": "COUNT"}
        total = 0
        while total < at_most:
            page = self.partitions.calls.query(arguments | {"Limit": at_most - total})
            total += page["Count"]
            if "LastEvaluatedKey" not in page:
                break
            arguments["ExclusiveStartKey"] = page["LastEvaluatedKey"]
        return total


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions of the status index of a table.

    Attributes:
        calls: Calls to the table.
        keyspace: Their names.
        index: The index.
        resume_at: Where queries of one end of a partition continue: all tasks up to this key were stale, or
            were taken. With the steady time of the first such query.
    """

    calls: TableCalls
    keyspace: Keyspace
    index: StatusIndex
    resume_at: ResumeAt = field(default_factory=dict)

    def live(
        self, queue: str, lines: Iterable[Line], created_after: float, deadline_after: float
    ) -> list[LivePartition]:
        """Return the live tasks of lines, by partition.

        Args:
            queue: Name of the queue.
            lines: The lines.
            created_after: Tasks created at or before this time, in seconds, are past the queue's max age.
            deadline_after: Tasks with a deadline at or before this time are stale.
        """
        return [
            LivePartition(self.keyspace.partition(queue, *line, shard), self, created_after, deadline_after)
            for line in lines
            for shard in range(self.keyspace.shards)
        ]


@dataclass(frozen=True, slots=True)
class _PassedTasks:
    """The tasks at one end of a partition that queries have passed over.

    Attributes:
        live: The live tasks of the partition.
        newest_first: Which end.
        resume_at: As in `Partitions`.
    """

    live: LivePartition
    newest_first: bool
    resume_at: ResumeAt

    def until(self, key: Item) -> None:
        """Note that the next query need not begin before a key."""
        if not self.live.partitions.index.by_time:
            return  # a new task may stand between stale ones
        key = self.further(key)
        _, since = self.resume_at.get((self.live.name, self.newest_first), (key, steady_seconds()))
        self.resume_at[self.live.name, self.newest_first] = (key, since)

    def further(self, key: Item) -> Item:
        """Return a key or the key to continue after, whichever is later: bounds of queries move with time."""
        if (known := self.resume_at.get((self.live.name, self.newest_first))) is None:
            return key
        passed, since = known
        if since + RESUME_SECONDS < steady_seconds() or not self.live.may_begin_after(passed):
            self.resume_at.pop((self.live.name, self.newest_first), None)
            return key
        return (min if self.newest_first else max)(key, passed, key=self.live.partitions.index.place)


def count_expired(live: LivePartition, since: float, life_seconds: float) -> int:
    """Count the tasks of a partition that are stale, but were not at an earlier time, on one page.

    Args:
        live: The live tasks of the partition, created within the last `life_seconds`.
        since: The earlier time, in seconds.
        life_seconds: Age at which most tasks are stale; the page begins with those that went stale last.
    """
    arguments = live.query("<=", None) | {
        "ScanIndexForward": False,
        "Limit": MOST_STALE,
        "Select": "COUNT",
        "FilterExpression": "#deadline BETWEEN :since AND :now",
    }
    if live.partitions.index.by_time:
        between = "#pendingShard = :shard AND #taskCreated BETWEEN :from AND :created"
        arguments["KeyConditionExpression"] = between
        arguments["ExpressionAttributeValues"] |= times({":from": since - life_seconds})
    else:
        arguments["FilterExpression"] += " AND #taskCreated <= :created"
    arguments["ExpressionAttributeValues"] |= times({":since": since, ":now": live.deadline_after})
    return int(live.partitions.calls.query(arguments)["Count"])


def due_query(partition: str, relation: str = "", due_at: float = 0.0) -> Item:
    """Return the arguments of a query of a partition of the due index.

    Args:
        partition: The partition.
        relation: How due times compare with `due_at`, such as ``<=``; empty for the whole partition.
        due_at: A time in seconds.
    """
    arguments: Item = {
        "IndexName": DUE_INDEX,
        "KeyConditionExpression": "#dueShard = :shard",
        "ExpressionAttributeValues": {":shard": {"S": partition}},
    }
    if relation:
        arguments["KeyConditionExpression"] += f" AND #dueAt {relation} :dueAt"
        arguments["ExpressionAttributeValues"][":dueAt"] = milliseconds(due_at)
    return arguments


def due_entries(page: Item) -> list[tuple[str, float]]:
    """Return the ids and times, in seconds, in a page of the due index."""
    return [(item["taskId"]["S"], seconds(item["dueAt"])) for item in page["Items"]]


def earliest_due(calls: TableCalls, partition: str, until: float) -> list[tuple[str, float]]:
    """Return the first ids and times, up to `DUE_PAGE_KEYS`, of a partition of the due index.

    Args:
        calls: Calls to the table.
        partition: The partition.
        until: Latest time, in seconds.
    """
    return due_entries(calls.query(due_query(partition, "<=", until) | {"Limit": DUE_PAGE_KEYS}))


def all_tasks(calls: TableCalls, queue: str, start_after: str | None = None) -> Iterator[Item]:
    """Yield the items of all tasks of a queue, in the order of the table."""
    arguments: Item = {
        "FilterExpression": "#taskQueue = :queue",
        "ExpressionAttributeValues": {":queue": {"S": queue}},
    }
    if start_after is not None:
        arguments["ExclusiveStartKey"] = {"taskId": {"S": start_after}}
    return filter(is_task, calls.scan(arguments))


def ids_of(page: Item) -> list[str]:
    """Return the ids in a page of a query."""
    return [item["taskId"]["S"] for item in page["Items"]]


def pages_of(calls: TableCalls, arguments: Item, larger_page_keys: int | None = None) -> Iterator[Item]:
    """Yield the pages of a query, reading each when it is needed.

    Args:
        calls: Calls to the table.
        arguments: Arguments of the query.
        larger_page_keys: The size of the pages after the first; None: the size of the first.
    """
    while True:
        page = calls.query(arguments)
        yield page
        if "LastEvaluatedKey" not in page:
            return
        arguments = arguments | {"ExclusiveStartKey": page["LastEvaluatedKey"]}
        if larger_page_keys is not None:
            arguments["Limit"] = larger_page_keys
