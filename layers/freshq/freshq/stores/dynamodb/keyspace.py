"""The names of the index partitions of one table, and which of them list a task."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from freshq.model.task import TaskStatus
from freshq.stores.dynamodb.status_index import StatusIndex
from freshq.stores.dynamodb.values import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from freshq.model.task import Task
    from freshq.stores.dynamodb.names import Item
    from freshq.stores.lines import Line


@dataclass(frozen=True, slots=True)
class Keyspace:
    """Names of the index partitions of one table.

    Attributes:
        shards: Partitions of each line and of the due index.
        is_attached: Whether the table is an application's. Then changes of a record are counted, and records
            never expire.
        status_index: The index of the claimable tasks.
    """

    shards: int
    is_attached: bool = False
    status_index: StatusIndex = field(default_factory=StatusIndex)

    def shard_of(self, item_id: str) -> int:
        """Return the shard of an item, by a hash that is the same in every process."""
        return zlib.crc32(item_id.encode()) % self.shards

    def pending(self, queue: str, line: Line, shard: int) -> str:
        """Return the partition of the claimable tasks of a line."""
        level, group = line
        partition = f"{queue}#{TaskStatus.PENDING}#{level}#{shard}"
        return partition if group is None else f"{partition}#{group}"

    def due(self, queue: str, shard: int) -> str:
        """Return a partition of the due index: delayed tasks and lease records."""
        return f"{queue}#DUE#{shard}"

    def pending_partitions(self, queue: str, lines: Iterable[Line]) -> list[str]:
        """Return all partitions of the claimable tasks of some lines."""
        return [self.pending(queue, line, shard) for line in lines for shard in range(self.shards)]

    def due_partitions(self, queue: str) -> list[str]:
        """Return all partitions of a queue in the due index."""
        return [self.due(queue, shard) for shard in range(self.shards)]

    def dead(self, queue: str, shard: int) -> str:
        """Return a partition of the due index for dead letters, by the time of their death."""
        return f"{queue}#DEAD#{shard}"

    def index_attributes(self, task: Task) -> Item:
        """Return the index keys of a task at `task.updated`; None for those to remove.

        A claimable task is in the status index, a delayed one in the due index, a stale one in neither. A
        dead letter is in the due index too: to find it otherwise, the whole table would have to be read.
        """
        keys: Item = dict.fromkeys(("pendingShard", "dueShard", "dueAt"))
        shard = self.shard_of(task.task_id)
        if task.status is TaskStatus.FAILURE:
            return keys | {
                "dueShard": {"S": self.dead(task.queue, shard)},
                "dueAt": milliseconds(task.updated),
            }
        if task.status_at(task.updated) is not TaskStatus.PENDING:
            return keys
        if task.not_before is not None:
            return keys | {
                "dueShard": {"S": self.due(task.queue, shard)},
                "dueAt": milliseconds(task.not_before),
            }
        return keys | {"pendingShard": {"S": self.pending(task.queue, (task.priority, task.group), shard)}}
