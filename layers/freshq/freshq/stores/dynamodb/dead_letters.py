"""Dead letters by the time of their death, from their partitions of the due index."""

from __future__ import annotations

import heapq
import logging
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from freshq.model.lifecycle import new_token
from freshq.model.task import TaskStatus
from freshq.stores.base import Guard
from freshq.stores.dead_letters import DeadPlace
from freshq.stores.dynamodb import queries
from freshq.stores.dynamodb.items import decode_if_task
from freshq.stores.dynamodb.names import KEY
from freshq.stores.dynamodb.values import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from freshq.model.task import Task
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.keyspace import Keyspace
    from freshq.stores.dynamodb.names import Item

logger = logging.getLogger(__name__)

# Dead letters that are read at a time: first one page of a listing, then as many as BatchGetItem takes.
FIRST_TASKS: Final = 25
MORE_TASKS: Final = 100


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
