"""Queries of the two indexes, and scans of the table."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from freshq.model.forks import new_lock
from freshq.stores.base import MOST_STALE
from freshq.stores.clocks import steady_seconds
from freshq.stores.dynamodb.items import is_task, milliseconds, seconds
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
    from freshq.stores.dynamodb.schema import Item

# How long claims with a plan use what they have read of a short line.
HEADS_SECONDS: Final = 1.0
# Lines that a process remembers: more than one plan considers.
MAX_KNOWN_LINES: Final = 2_000
# A queue, the key of a line, and whether it was read from its newest end.
LinePlace: TypeAlias = tuple[str, str, bool]


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

    def query(
        self, partition: str, relation: str, created: float, deadline: tuple[str, float] | None = None
    ) -> Item:
        """Return the arguments of a query of the tasks of a partition, by creation time and deadline.

        Args:
            partition: The partition.
            relation: How creation times compare with `created`, such as ``>``.
            created: A time in seconds.
            deadline: How deadlines compare with a time, and that time in seconds; None: any deadline.
        """
        key, filters = "#pendingShard = :shard", []
        values = {":shard": {"S": partition}, ":created": milliseconds(created)}
        if self.by_time:
            key += f" AND #taskCreated {relation} :created"
        else:
            filters.append(f"#taskCreated {relation} :created")
        if deadline is not None:
            filters.append(f"#deadline {deadline[0]} :deadline")
            values[":deadline"] = milliseconds(deadline[1])
        arguments: Item = {
            "IndexName": self.name,
            "KeyConditionExpression": key,
            "ExpressionAttributeValues": values,
        }
        return arguments | {"FilterExpression": " AND ".join(filters)} if filters else arguments

    def live(self, created_after: float, deadline_after: float) -> LiveTasks:
        """Return which tasks are live, also by their deadlines."""
        return LiveTasks(self, created_after, deadline_after)

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
        deadline = item.get(STATUS_INDEX_ATTRIBUTE)
        return IndexEntry(
            place, created, item["taskId"]["S"], None if deadline is None else seconds(deadline)
        )


@dataclass(frozen=True, slots=True)
class LiveTasks:
    """The tasks of a line that are not stale.

    Attributes:
        index: Where they are.
        created_after: Tasks created at or before this time, in seconds, are past the queue's max age.
        deadline_after: Tasks with a deadline at or before this time are stale; None if that is not asked.
    """

    index: StatusIndex
    created_after: float
    deadline_after: float | None = None

    def query(self, partition: str) -> Item:
        """Return the arguments of a query of them in a partition of the index."""
        deadline = None if self.deadline_after is None else (">", self.deadline_after)
        return self.index.query(partition, ">", self.created_after, deadline)


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


class Resume(NamedTuple):
    """Where the next query of a partition continues.

    Attributes:
        key: Start after this key. Every task before it was stale, or was taken.
        since: Steady time of the first such query.
    """

    key: Item
    since: float


# By partition and whether the newest come first.
ResumeAt: TypeAlias = dict[tuple[str, bool], Resume]

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


@dataclass(frozen=True, slots=True)
class KeysPage:
    """A page of live tasks of a partition.

    Attributes:
        entries: The tasks, in the order of the query.
        is_last: Whether the search reached the end.
        passed_over: Number of stale tasks that the query also read.
    """

    entries: list[IndexEntry]
    is_last: bool
    passed_over: int


def claimable_pages(
    calls: TableCalls,
    partition: str,
    live: LiveTasks,
    limit: int,
    *,
    newest_first: bool,
    resume_at: ResumeAt | None = None,
) -> Iterator[KeysPage]:
    """Yield the live tasks of a partition, page by page.

    The number of pages is bounded. A page on which most tasks are stale is followed by a larger one.

    Args:
        calls: Calls to the table.
        partition: The partition of the status index.
        live: Which tasks are live.
        limit: How many tasks are wanted. Pages are read as needed.
        newest_first: Which end comes first.
        resume_at: Where an earlier query ran out of pages; the search continues there after the first page.
    """
    arguments = live.query(partition) | {
        "ScanIndexForward": not newest_first,
        "Limit": limit + LOOKAHEAD_KEYS,
    }
    # If time is not the order, a new task may stand between stale ones.
    resume = resume_at if resume_at is not None and live.index.by_time else {}
    resumed = _ResumedQuery(resume, (partition, newest_first), live.index)
    for page in _bounded_pages(calls, arguments, resumed):
        yield KeysPage(
            list(map(live.index.entry, page["Items"])),
            is_last="LastEvaluatedKey" not in page,
            passed_over=page["ScannedCount"] - page["Count"],
        )


def _bounded_pages(calls: TableCalls, arguments: Item, resumed: _ResumedQuery) -> Iterator[Item]:
    """Yield up to `MAX_PAGES` pages of a query, larger ones after one of mostly stale tasks."""
    larger = iter(LARGER_PAGES_KEYS)
    mostly_stale, only_stale = False, True
    for _ in range(MAX_PAGES):
        page = calls.query(arguments)
        key = page.get("LastEvaluatedKey")
        only_stale = only_stale and page["Count"] == 0
        if only_stale and key is not None:
            resumed.passed(key)  # now: the caller may need no other page
        yield page
        if key is None:
            resumed.ended()
            return
        mostly_stale = 2 * page["Count"] < page["ScannedCount"]
        if mostly_stale:
            arguments["Limit"] = max(arguments["Limit"], next(larger, LARGER_PAGES_KEYS[-1]))
            if "ExclusiveStartKey" not in arguments:
                key = resumed.further(key)
        arguments["ExclusiveStartKey"] = key
    if mostly_stale:
        resumed.passed(arguments["ExclusiveStartKey"])


class _ResumedQuery:
    """A query of one end of a partition, which continues where earlier ones found nothing."""

    def __init__(self, resume_at: ResumeAt, end: tuple[str, bool], index: StatusIndex) -> None:
        self._resume_at = resume_at
        self._index = index
        self._end = end
        now = steady_seconds()
        known = resume_at.get(end)
        if known is not None and known.since + RESUME_SECONDS < now:
            del resume_at[end]
            known = None
        self._since = now if known is None else known.since

    def passed(self, key: Item) -> None:
        """Note that the next query need not begin before a key."""
        self._resume_at[self._end] = Resume(self.further(key), self._since)

    def ended(self) -> None:
        """Note that the query reached the end of the partition."""
        self._resume_at.pop(self._end, None)

    def further(self, key: Item) -> Item:
        """Return a key or the key to continue after, whichever is later: bounds of queries move with time."""
        resume = self._resume_at.get(self._end)
        if resume is None:
            return key
        later = min if self._end[1] else max
        return later(key, resume.key, key=self._index.place)


def oldest_claimable(
    calls: TableCalls, partition: str, live: LiveTasks, limit: int
) -> Iterator[tuple[float, str]]:
    """Yield the creation times and ids of the live tasks of a partition, oldest first.

    If time is the order, it reads as `claimable_pages` does, else the whole partition.
    """
    if live.index.by_time:
        pages = claimable_pages(calls, partition, live, limit, newest_first=False)
        entries = chain.from_iterable(page.entries for page in pages)
        return ((entry.created, entry.task_id) for entry in entries)
    items = chain.from_iterable(page["Items"] for page in pages_of(calls, live.query(partition)))
    return iter(sorted((seconds(item["taskCreated"]), item["taskId"]["S"]) for item in items))


def first_entries(
    calls: TableCalls, partition: str, live: LiveTasks, resume_at: ResumeAt | None = None
) -> list[IndexEntry]:
    """Return the oldest live tasks of a partition, about a page.

    If time is not the order, it reads the whole partition.

    Args:
        calls: Calls to the table.
        partition: The partition of the status index.
        live: Which tasks are live.
        resume_at: As in `claimable_pages`.
    """
    if not live.index.by_time:
        items = chain.from_iterable(page["Items"] for page in pages_of(calls, live.query(partition)))
        return sorted(map(live.index.entry, items), key=attrgetter("created"))
    pages = claimable_pages(calls, partition, live, 1, newest_first=False, resume_at=resume_at)
    return next((page.entries for page in pages if page.entries), [])


def count_expired(
    calls: TableCalls, partition: str, index: StatusIndex, since: float, now: float, life_seconds: float
) -> int:
    """Count the tasks of a partition that went stale between two times, on one page.

    Args:
        calls: Calls to the table.
        partition: The partition of the status index.
        index: The index.
        since: Not those that were stale at this time, in seconds.
        now: Current time in seconds.
        life_seconds: Age at which most tasks are stale; the page begins with those that went stale last.
    """
    arguments = index.query(partition, "<=", now - life_seconds) | {
        "ScanIndexForward": False,
        "Limit": MOST_STALE,
        "Select": "COUNT",
        "FilterExpression": "#deadline BETWEEN :since AND :now",
    }
    if index.by_time:
        between = "#pendingShard = :shard AND #taskCreated BETWEEN :from AND :created"
        arguments["KeyConditionExpression"] = between
        arguments["ExpressionAttributeValues"][":from"] = milliseconds(since - life_seconds)
    else:
        arguments["FilterExpression"] += " AND #taskCreated <= :created"
    arguments["ExpressionAttributeValues"] |= {":since": milliseconds(since), ":now": milliseconds(now)}
    return int(calls.query(arguments)["Count"])


def may_have_live(calls: TableCalls, partition: str, live: LiveTasks) -> bool:
    """Return whether a partition has live tasks; True if finding out would take too many pages."""
    arguments = live.query(partition) | {"ScanIndexForward": False}
    for limit in (LOOKAHEAD_KEYS, *LARGER_PAGES_KEYS):
        page = calls.query(arguments | {"Limit": limit})
        if page["Items"] or "LastEvaluatedKey" not in page:
            return bool(page["Items"])
        arguments["ExclusiveStartKey"] = page["LastEvaluatedKey"]
    return True


def stale_page(
    calls: TableCalls, partition: str, live: LiveTasks, now: float, start_after: Item | None
) -> tuple[list[str], Item | None]:
    """Read one page of tasks that are past their own deadline, but not past the queue's max age.

    Args:
        calls: Calls to the table.
        partition: The partition of the status index.
        live: Which tasks are live, by the queue's max age only.
        now: Current time in seconds.
        start_after: Key that an earlier call returned; None to begin.

    Returns:
        The ids, last first, and the key after which there may be more; None if there is no more.
    """
    arguments = live.index.query(partition, ">", live.created_after, ("<=", now)) | {
        "ScanIndexForward": False,
        "Limit": LARGER_PAGES_KEYS[0],
    }
    if start_after is not None:
        if live.index.by_time and live.index.place(start_after) <= live.created_after:
            return [], None
        arguments["ExclusiveStartKey"] = start_after
    page = calls.query(arguments)
    return ids_of(page), page.get("LastEvaluatedKey")


def count_live(calls: TableCalls, partition: str, live: LiveTasks, at_most: int) -> int:
    """Return the number of live tasks of a partition, or `at_most` if there are more."""
    arguments = live.query(partition) | {"Select": "COUNT"}
    total = 0
    while total < at_most:
        page = calls.query(arguments | {"Limit": at_most - total})
        total += page["Count"]
        if "LastEvaluatedKey" not in page:
            break
        arguments["ExclusiveStartKey"] = page["LastEvaluatedKey"]
    return total


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


def due_ids(calls: TableCalls, partition: str, now: float) -> Iterator[list[str]]:
    """Yield the ids that are due in a partition of the due index, page by page."""
    arguments = due_query(partition, "<=", now) | {"Limit": DUE_PAGE_KEYS}
    return map(ids_of, pages_of(calls, arguments))


def due_after(calls: TableCalls, partition: str, now: float) -> list[float]:
    """Return the first time after `now`, in seconds, in a partition of the due index, if there is one."""
    page = calls.query(due_query(partition, ">", now) | {"Limit": 1})
    return [due_at for _id, due_at in due_entries(page)]


def earliest_due(calls: TableCalls, partition: str, until: float) -> list[tuple[str, float]]:
    """Return the first ids and times, up to `DUE_PAGE_KEYS`, of a partition of the due index.

    Args:
        calls: Calls to the table.
        partition: The partition.
        until: Latest time, in seconds.
    """
    return due_entries(calls.query(due_query(partition, "<=", until) | {"Limit": DUE_PAGE_KEYS}))


def newest_due(
    calls: TableCalls, partition: str, since: float, start_after: Item | None, max_pages: int
) -> tuple[list[tuple[str, float]], Item | None]:
    """Read the entries of a partition of the due index, latest time first.

    Args:
        calls: Calls to the table.
        partition: The partition.
        since: Earliest time, in seconds.
        start_after: Key that an earlier call returned; None to begin.
        max_pages: How many pages to read.

    Returns:
        The ids and times, and the key after which there may be more; None if there is no more.
    """
    arguments = due_query(partition, ">=", since) | {"ScanIndexForward": False}
    if start_after is not None:
        arguments["ExclusiveStartKey"] = start_after
    found: list[tuple[str, float]] = []
    for page in islice(pages_of(calls, arguments), max_pages):
        found += due_entries(page)
        start_after = page.get("LastEvaluatedKey")
    return found, start_after


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
