"""Find dead letters, and quarantine items that cannot be read."""

from __future__ import annotations

import heapq
import logging
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from freshq.errors import DamagedTaskError
from freshq.model.lifecycle import new_token
from freshq.model.task import TaskStatus
from freshq.stores.base import DeadPlace, Guard
from freshq.stores.dynamodb import queries
from freshq.stores.dynamodb.calls import ConditionFailed
from freshq.stores.dynamodb.items import (
    conditioned,
    decode,
    decode_if_task,
    update_arguments,
    version_count,
)
from freshq.stores.dynamodb.keyspace import KEY, milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from freshq.model.task import Task
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.keyspace import Item, Keyspace

logger = logging.getLogger(__name__)
# Dead letters that are read at a time: first one page of a listing, then as many as BatchGetItem takes.
FIRST_TASKS: Final = 25
MORE_TASKS: Final = 100
# A status that this version does not know belongs to a newer one, which may still run the task.
WAITING_OR_HELD: Final = ({"S": TaskStatus.PENDING.value}, {"S": TaskStatus.TAKEN.value})


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of a table's queues.

    Attributes:
        calls: Calls to the table.
        keyspace: Names of its index partitions.
    """

    calls: TableCalls
    keyspace: Keyspace

    def newest_first(self, queue: str, start_after: DeadPlace | None) -> Iterator[Task]:
        """Yield dead letters, the last to die first; those of one instant in the order of their shards."""
        shards = (self._of_shard(queue, shard, start_after) for shard in range(self.keyspace.shards))
        places = heapq.merge(*shards, key=lambda place: place.dead_at, reverse=True)
        size = FIRST_TASKS
        while ids := [place.task_id for place in islice(places, size)]:
            tasks = map(decode_if_task, self.calls.get_many(ids))
            # The index lags behind the table.
            found = {task.task_id: task for task in tasks if task and task.status is TaskStatus.FAILURE}
            yield from (found[task_id] for task_id in ids if task_id in found)
            size = MORE_TASKS

    def unlisted(self, queue: str) -> Iterator[tuple[Task, Guard]]:
        """Yield the change that lists each dead letter that an earlier version left in no index.

        Reads the whole table.
        """
        for task in map(decode_if_task, _unlisted(self.calls, queue)):
            if task is not None:
                died = task.updated if task.dead_at is None else task.dead_at
                listed = replace(task, dead_at=died, request_token=new_token())
                yield listed, Guard(TaskStatus.FAILURE, request_token=task.request_token)

    def reported(self, queue: str, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items that were read anyway; warn once if a dead letter among them is in no index.

        One that cannot be read does not count: no listing can show it.
        """
        unlisted = 0
        for item in items:
            unlisted += _is_unlisted(item) and decode_if_task(item) is not None
            yield item
        if unlisted:
            logger.warning(
                "queue %r: %d dead letters of an earlier version are in no index, so listings lack them; "
                "run `freshq dlq index`, or index_dead()",
                queue,
                unlisted,
            )

    def _of_shard(self, queue: str, shard: int, start_after: DeadPlace | None) -> Iterator[DeadPlace]:
        """Yield the places of one shard, the last to die first, reading pages as needed."""
        partition = self.keyspace.dead(queue, shard)
        arguments: Item = queries.due_query(partition) | {"ScanIndexForward": False, "Limit": FIRST_TASKS}
        if start_after is not None:
            arguments |= self._after(partition, shard, start_after, arguments)
        for page in queries.due_pages(self.calls, arguments, MORE_TASKS):
            yield from (DeadPlace(dead_at, task_id) for task_id, dead_at in page)

    def _after(self, partition: str, shard: int, place: DeadPlace, arguments: Item) -> Item:
        """Return the arguments with which a query of a shard continues after a place of any shard."""
        dead_at = milliseconds(place.dead_at)
        own_shard = self.keyspace.shard_of(place.task_id)
        if shard == own_shard:
            key = {KEY: {"S": place.task_id}, "dueShard": {"S": partition}, "dueAt": dead_at}
            return {"ExclusiveStartKey": key}
        relation = "<" if shard < own_shard else "<="
        return {
            "KeyConditionExpression": f"#dueShard = :shard AND #dueAt {relation} :deadAt",
            "ExpressionAttributeValues": arguments["ExpressionAttributeValues"] | {":deadAt": dead_at},
        }


def _unlisted(calls: TableCalls, queue: str) -> Iterator[Item]:
    """Yield the dead letters of a queue that are in no index, in the order of the table."""
    arguments: Item = {
        "FilterExpression": (
            "#taskQueue = :queue AND #taskStatus = :dead AND attribute_not_exists(#dueShard)"
        ),
        "ExpressionAttributeValues": {":queue": {"S": queue}, ":dead": {"S": TaskStatus.FAILURE.value}},
    }
    return calls.scan(arguments)


def _is_unlisted(item: Item) -> bool:
    """Return whether an item is a dead letter that is in no index."""
    return item["taskStatus"].get("S") == TaskStatus.FAILURE and "dueShard" not in item


@dataclass(slots=True)
class Quarantine:
    """Makes dead letters of tasks that cannot be read.

    Attributes:
        calls: Calls to the table.
        keyspace: Names of its index partitions.
        admitted: How many tasks became dead letters since `take_admitted`.
    """

    calls: TableCalls
    keyspace: Keyspace
    admitted: int = 0

    def admit(self, item: Item, now: float) -> None:
        """Make a dead letter of a task if it cannot be read, unless it changes or its status is unknown.

        Args:
            item: The item of the task as it was read.
            now: Current time in seconds.
        """
        try:
            decode(item)
        except DamagedTaskError as damage:
            if item["taskStatus"] not in WAITING_OR_HELD:
                return
            error = str(damage)
        else:
            return
        task_id = item["taskId"]["S"]
        try:
            self.calls.update(self._arguments(item, error, now))
        except ConditionFailed:
            logger.debug("task %s changed before it could be quarantined", task_id)
        else:
            self.admitted += 1
            logger.error("task %s is a dead letter now: %s", task_id, error)

    def take_admitted(self) -> int:
        """Return how many tasks became dead letters since the last call."""
        admitted, self.admitted = self.admitted, 0
        return admitted

    def _arguments(self, item: Item, error: str, now: float) -> Item:
        task_id = item["taskId"]["S"]
        changes: Item = dict.fromkeys(
            ("leaseToken", "leaseUntil", "notBefore", "pendingShard", "dueShard", "dueAt")
        )
        changes |= {
            "taskStatus": {"S": TaskStatus.FAILURE.value},
            "taskUpdated": milliseconds(now),
            "error": {"S": error},
            "requestToken": {"S": new_token()},
            "deadAt": milliseconds(now),
        }
        if (queue := item.get("taskQueue", {}).get("S")) is not None:
            dead = self.keyspace.dead(queue, self.keyspace.shard_of(task_id))
            changes |= {"dueShard": {"S": dead}, "dueAt": milliseconds(now)}
        unchanged, values = ["#taskStatus = :seenStatus"], {":seenStatus": item["taskStatus"]}
        if "requestToken" in item:
            unchanged.append("#requestToken = :seenToken")
            values[":seenToken"] = item["requestToken"]
        return conditioned(
            update_arguments(task_id, changes, version_count(self.keyspace)), unchanged, values
        )
