"""Reads of the two indexes and of the whole table."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from freshq.model.task import TaskStatus
from freshq.stores.base import Stats
from freshq.stores.dynamodb.calls import ConditionFailed
from freshq.stores.dynamodb.items import LEASE_PREFIX, decode_if_task, is_task, milliseconds, seconds
from freshq.stores.dynamodb.leases import ahead_ids, due_attributes, is_lease_record, task_ids_of
from freshq.stores.dynamodb.schema import DUE_INDEX, STATUS_INDEX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.items import Keyspace
    from freshq.stores.dynamodb.names import Item
    from freshq.stores.lines import Line

logger = logging.getLogger(__name__)

# Keys read beyond the free slots, for candidates that others take first. Thirty keys of some 110 bytes
# still cost one half read unit, the least a query can cost.
LOOKAHEAD_KEYS: Final = 19
# Entries of the due index handled at a time.
DUE_PAGE_KEYS: Final = 25


def claimable(
    calls: TableCalls,
    shard: str,
    created_after: float,
    limit: int,
    *,
    newest_first: bool,
    pages: list[list[str]] | None = None,
) -> Iterator[tuple[float, str]]:
    """Yield creation time and id of the tasks of a partition that are not stale, best first.

    Args:
        calls: The calls of the table.
        shard: The partition.
        created_after: Tasks created at or before this time are stale.
        limit: How many tasks are wanted; more pages are read only as they are needed.
        newest_first: From which end.
        pages: Gets the ids of each page that is read.
    """
    arguments = pending_query(shard, ">", created_after) | {
        "ScanIndexForward": not newest_first,
        "Limit": limit + LOOKAHEAD_KEYS,
    }
    while True:
        page = calls.query(arguments)
        if pages is not None:
            pages.append([item["taskId"]["S"] for item in page["Items"]])
        for item in page["Items"]:
            yield seconds(item["taskCreated"]), item["taskId"]["S"]
        if "LastEvaluatedKey" not in page:
            return
        arguments["ExclusiveStartKey"] = page["LastEvaluatedKey"]


def pending_query(partition: str, relation: str, created: float) -> Item:
    """Return the arguments of a query of a partition of claimable tasks, by their creation time."""
    return {
        "IndexName": STATUS_INDEX,
        "KeyConditionExpression": f"#pendingShard = :shard AND #taskCreated {relation} :created",
        "ExpressionAttributeValues": {":shard": {"S": partition}, ":created": milliseconds(created)},
    }


def count_live(calls: TableCalls, partition: str, created_after: float, at_most: int) -> int:
    """Return how many tasks of a partition are not stale, counting no further than `at_most`."""
    arguments = pending_query(partition, ">", created_after) | {"Select": "COUNT"}
    total = 0
    while total < at_most:
        page = calls.query(arguments | {"Limit": at_most - total})
        total += page["Count"]
        if "LastEvaluatedKey" not in page:
            break
        arguments["ExclusiveStartKey"] = page["LastEvaluatedKey"]
    return total


def partition_ids(calls: TableCalls, shard: str) -> Iterator[str]:
    """Yield the ids of all that a partition of the due index has, by time, reading pages as needed."""
    arguments: Item = {
        "IndexName": DUE_INDEX,
        "KeyConditionExpression": "#dueShard = :shard",
        "ExpressionAttributeValues": {":shard": {"S": shard}},
    }
    while True:
        page = calls.query(arguments)
        yield from [item["taskId"]["S"] for item in page["Items"]]
        if "LastEvaluatedKey" not in page:
            return
        arguments["ExclusiveStartKey"] = page["LastEvaluatedKey"]


def due(calls: TableCalls, shard: str, now: float) -> Iterator[list[str]]:
    """Yield the ids of what a partition of the due index has for `now` or before, page by page.

    The pages are read as they are needed.
    """
    arguments: Item = {
        "IndexName": DUE_INDEX,
        "KeyConditionExpression": "#dueShard = :shard AND #dueAt <= :now",
        "ExpressionAttributeValues": {":shard": {"S": shard}, ":now": milliseconds(now)},
        "Limit": DUE_PAGE_KEYS,
    }
    while True:
        page = calls.query(arguments)
        yield [item["taskId"]["S"] for item in page["Items"]]
        if "LastEvaluatedKey" not in page:
            return
        arguments["ExclusiveStartKey"] = page["LastEvaluatedKey"]


def tidy_lease_record(calls: TableCalls, record: Item, next_due_at: float | None) -> None:
    """Move a lease record to when it is to be looked at again, or delete it if it need not be.

    Nothing happens if its process has rewritten it since it was read.
    """
    unchanged: Item = {
        "ConditionExpression": "#requestToken = :seen",
        "ExpressionAttributeValues": {":seen": record["requestToken"]},
    }
    try:
        if next_due_at is None:
            calls.delete(record["taskId"]["S"], unchanged)
        else:
            calls.put(record | due_attributes(next_due_at), unchanged)
    except ConditionFailed:
        logger.debug("lease record %s was rewritten by its process", record["taskId"]["S"])


def all_tasks(calls: TableCalls, queue: str, start_after: str | None = None) -> Iterator[Item]:
    """Yield the items of all tasks of a queue, in the order of the table."""
    arguments: Item = {
        "FilterExpression": "#taskQueue = :queue",
        "ExpressionAttributeValues": {":queue": {"S": queue}},
    }
    if start_after is not None:
        arguments["ExclusiveStartKey"] = {"taskId": {"S": start_after}}
    return filter(is_task, calls.scan(arguments))


class ApproximateCounts:
    """Counts of a queue by at most one page of each partition and kind."""

    def __init__(self, calls: TableCalls, keyspace: Keyspace, queue: str) -> None:
        """Count nothing yet."""
        self._calls = calls
        self._keyspace = keyspace
        self._queue = queue
        not_counted = ("success", "failure", "cancelled", "shed_by_reason")
        self._bounded = dict.fromkeys(not_counted, "not counted")
        # One that was given up, or went stale before its queue's max age, is in no index any more.
        self._bounded |= {"shed": "at least", "taken": "at most"}

    def stats(self, lines: Iterable[Line], now: float, created_after: float) -> Stats:
        """Return the counts.

        Args:
            lines: Where tasks may wait.
            now: Current time in seconds.
            created_after: Tasks created at or before this time are stale.
        """
        shards = range(self._keyspace.shards)
        partitions = [self._keyspace.pending(self._queue, line, shard) for line in lines for shard in shards]
        ends = [end for partition in partitions for end in self._ends(partition, created_after)]
        pending = sum(self._count("pending", partition, ">", created_after) for partition in partitions)
        shed = sum(self._count("shed", partition, "<=", created_after) for partition in partitions)
        waiting = [item_id for shard in shards for item_id in self._waiting(shard)]
        leases = [item_id for item_id in waiting if item_id.startswith(LEASE_PREFIX)]
        held = self._held(self._calls.get_many(leases))
        return Stats(
            pending=pending,
            delayed=len(waiting) - len(leases),
            taken=len(held),
            shed=shed,
            oldest_pending_seconds=max(0.0, now - min(ends)) if ends else None,
            newest_pending_seconds=max(0.0, now - max(ends)) if ends else None,
            bounded=self._bounded,
        )

    def _held(self, records: Iterable[Item]) -> set[str]:
        """Return what lease records name, of what they name ahead only what was claimed since."""
        records = [record for record in records if is_lease_record(record)]
        ahead = {task_id for record in records for task_id in ahead_ids(record)}
        held = {task_id for record in records for task_id in task_ids_of(record)} - ahead
        found = self._calls.get_many(sorted(ahead)) if ahead else []
        taken = (decode_if_task(item) for item in found)
        return held | {task.task_id for task in taken if task and task.status is TaskStatus.TAKEN}

    def _ends(self, partition: str, created_after: float) -> list[float]:
        """Return the creation times of the oldest and of the newest claimable task, if there is one."""
        query = pending_query(partition, ">", created_after) | {"Limit": 1}
        pages = [self._calls.query(query | {"ScanIndexForward": forward}) for forward in (True, False)]
        return [seconds(item["taskCreated"]) for page in pages for item in page["Items"]]

    def _count(self, field: str, partition: str, relation: str, created: float) -> int:
        page = self._calls.query(pending_query(partition, relation, created) | {"Select": "COUNT"})
        if "LastEvaluatedKey" in page:
            self._bounded[field] = "at least"
        return int(page["Count"])

    def _waiting(self, shard: int) -> list[str]:
        """Return the ids of the delayed tasks and of the lease records of a shard."""
        page = self._calls.query(
            {
                "IndexName": DUE_INDEX,
                "KeyConditionExpression": "#dueShard = :shard",
                "ExpressionAttributeValues": {":shard": {"S": self._keyspace.due(self._queue, shard)}},
            }
        )
        if "LastEvaluatedKey" in page:
            self._bounded["delayed"] = "at least"
        return [item["taskId"]["S"] for item in page["Items"]]
