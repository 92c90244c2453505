"""Turns damaged tasks into dead letters, so that they block no others."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from freshq.errors import DamagedTaskError
from freshq.model.lifecycle import new_token
from freshq.model.task import TaskStatus
from freshq.stores.dynamodb.calls import ConditionFailed
from freshq.stores.dynamodb.items import (
    conditioned,
    decode,
    update_arguments,
    version_count,
)
from freshq.stores.dynamodb.values import milliseconds

if TYPE_CHECKING:
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.keyspace import Keyspace
    from freshq.stores.dynamodb.names import Item

logger = logging.getLogger(__name__)

# A status that this version does not know belongs to a newer one, which may still run the task.
WAITING_OR_HELD: Final = ({"S": TaskStatus.PENDING.value}, {"S": TaskStatus.TAKEN.value})


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
