"""Queries of the two indexes, and scans of the table."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

from freshq.stores.dynamodb.items import is_task, milliseconds, seconds
from freshq.stores.dynamodb.schema import DUE_INDEX, STATUS_INDEX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.names import Item

# By partition and whether the newest come first: the key after which the next look goes on.
ResumeAt: TypeAlias = dict[tuple[str, bool], "Item"]

# Keys read beyond those wanted, for tasks that others take first. Thirty keys of about 110 bytes still cost
# one half read unit, the minimum of a query.
LOOKAHEAD_KEYS: Final = 19
# Pages that a claim reads of a partition.
MAX_PAGES: Final = 4
# Keys on the page that follows one of mostly stale tasks, and on those after that. The last is about the
# megabyte that DynamoDB reads at most for one query.
LARGER_PAGES_KEYS: Final = (1_000, 8_000)
# Entries of the due index handled at a time.
DUE_PAGE_KEYS: Final = 25


@dataclass(frozen=True, slots=True)
class LiveTasks:
    """The tasks of a line that are not stale.

    Attributes:
        created_after: Tasks created at or before this time, in seconds, are past the queue's max age.
        deadline_after: Tasks with a deadline at or before this time are stale; None if that is not asked,
            or the index does not have the deadlines.
    """

    created_after: float
    deadline_after: float | None = None

    def query(self, partition: str) -> Item:
        """Return the arguments of a query of them in a partition of the status index."""
        arguments = pending_query(partition, ">", self.created_after)
        if self.deadline_after is not None:
            arguments["FilterExpression"] = "#deadline > :deadlineAfter"
            arguments["ExpressionAttributeValues"][":deadlineAfter"] = milliseconds(self.deadline_after)
        return arguments


def claimable_pages(
    calls: TableCalls,
    partition: str,
    live: LiveTasks,
    limit: int,
    *,
    newest_first: bool,
    resume_at: ResumeAt | None = None,
) -> Iterator[list[tuple[float, str]]]:
    """Yield the creation times and ids of live tasks of a partition, page by page.

    The number of pages is bounded. A page on which most tasks are stale is followed by a larger one.

    Args:
        calls: Calls to the table.
        partition: The partition of the status index.
        live: Which tasks are live.
        limit: How many tasks are wanted. Pages are read as needed.
        newest_first: Which end comes first.
        resume_at: Where an earlier look ran out of pages; goes on there after the first page.
    """
    arguments = live.query(partition) | {
        "ScanIndexForward": not newest_first,
        "Limit": limit + LOOKAHEAD_KEYS,
    }
    end = (partition, newest_first)
    for page in _bounded_pages(calls, arguments, {} if resume_at is None else resume_at, end):
        yield [(seconds(item["taskCreated"]), item["taskId"]["S"]) for item in page["Items"]]


def _bounded_pages(
    calls: TableCalls, arguments: Item, resume_at: ResumeAt, end: tuple[str, bool]
) -> Iterator[Item]:
    """Yield up to `MAX_PAGES` pages of a query, larger ones after one of mostly stale tasks."""
    larger = iter(LARGER_PAGES_KEYS)
    mostly_stale = False
    for _ in range(MAX_PAGES):
        page = calls.query(arguments)
        yield page
        if "LastEvaluatedKey" not in page:
            resume_at.pop(end, None)
            return
        mostly_stale = 2 * page["Count"] < page["ScannedCount"]
        key = page["LastEvaluatedKey"]
        if mostly_stale:
            arguments["Limit"] = max(arguments["Limit"], next(larger, LARGER_PAGES_KEYS[-1]))
            if "ExclusiveStartKey" not in arguments:
                key = resume_at.get(end, key)
        arguments["ExclusiveStartKey"] = key
    if mostly_stale:
        resume_at[end] = arguments["ExclusiveStartKey"]


def oldest_claimable(
    calls: TableCalls, partition: str, live: LiveTasks, limit: int
) -> Iterator[tuple[float, str]]:
    """Yield what `claimable_pages` finds, one by one, oldest first."""
    return chain.from_iterable(claimable_pages(calls, partition, live, limit, newest_first=False))


def pending_query(partition: str, relation: str, created: float) -> Item:
    """Return the arguments of a query of a partition of the status index, by creation time."""
    return {
        "IndexName": STATUS_INDEX,
        "KeyConditionExpression": f"#pendingShard = :shard AND #taskCreated {relation} :created",
        "ExpressionAttributeValues": {":shard": {"S": partition}, ":created": milliseconds(created)},
    }


def count_live(calls: TableCalls, partition: str, created_after: float, at_most: int) -> int:
    """Return the number of tasks of a partition that are not stale, or `at_most` if there are more."""
    arguments = pending_query(partition, ">", created_after) | {"Select": "COUNT"}
    total = 0
    while total < at_most:
        page = calls.query(arguments | {"Limit": at_most - total})
        total += page["Count"]
        if "LastEvaluatedKey" not in page:
            break
        arguments["ExclusiveStartKey"] = page["LastEvaluatedKey"]
    return total


def due_query(partition: str) -> Item:
    """Return the arguments of a query of a whole partition of the due index."""
    return {
        "IndexName": DUE_INDEX,
        "KeyConditionExpression": "#dueShard = :shard",
        "ExpressionAttributeValues": {":shard": {"S": partition}},
    }


def partition_ids(calls: TableCalls, partition: str) -> Iterator[str]:
    """Yield the ids in a partition of the due index, by time, reading pages as needed."""
    for page in _pages(calls, due_query(partition)):
        yield from ids_of(page)


def due_ids(calls: TableCalls, partition: str, now: float) -> Iterator[list[str]]:
    """Yield the ids that are due in a partition of the due index, page by page."""
    arguments: Item = {
        "IndexName": DUE_INDEX,
        "KeyConditionExpression": "#dueShard = :shard AND #dueAt <= :now",
        "ExpressionAttributeValues": {":shard": {"S": partition}, ":now": milliseconds(now)},
        "Limit": DUE_PAGE_KEYS,
    }
    return map(ids_of, _pages(calls, arguments))


def due_later(calls: TableCalls, partition: str, now: float) -> Iterator[tuple[str, float]]:
    """Yield the ids in a partition of the due index that are due after `now`, and when, in seconds."""
    arguments: Item = {
        "IndexName": DUE_INDEX,
        "KeyConditionExpression": "#dueShard = :shard AND #dueAt > :now",
        "ExpressionAttributeValues": {":shard": {"S": partition}, ":now": milliseconds(now)},
    }
    for page in _pages(calls, arguments):
        yield from ((item["taskId"]["S"], seconds(item["dueAt"])) for item in page["Items"])


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


def _pages(calls: TableCalls, arguments: Item) -> Iterator[Item]:
    """Yield the pages of a query, each read when it is needed."""
    while True:
        page = calls.query(arguments)
        yield page
        if "LastEvaluatedKey" not in page:
            return
        arguments = arguments | {"ExclusiveStartKey": page["LastEvaluatedKey"]}
