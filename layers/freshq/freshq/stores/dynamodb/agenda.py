"""Find due tasks: expired leases, delays that have passed, stale tasks."""

from __future__ import annotations

import base64
import json
import logging
from itertools import chain, islice
from math import ceil
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from freshq.errors import quoted
from freshq.model.checks import checked_id
from freshq.model.fields import MAX_EPOCH_SECONDS, RESERVED_ID_PREFIX
from freshq.model.lifecycle import new_token
from freshq.model.task import TaskStatus
from freshq.stores.base import Due
from freshq.stores.dynamodb import queries
from freshq.stores.dynamodb.calls import BATCH_GET_KEYS, ConditionFailed
from freshq.stores.dynamodb.items import (
    LEASE_PREFIX,
    UNREADABLE,
    condition,
    decode_if_task,
    is_task,
    seconds_or,
)
from freshq.stores.dynamodb.leases import due_at, due_attributes, is_lease_record, next_check, task_ids_of
from freshq.stores.dynamodb.part import DynamoPart
from freshq.stores.dynamodb.queries import DUE_PAGE_KEYS, due_query, earliest_due
from freshq.stores.dynamodb.schema import KEY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from freshq.model.task import Task
    from freshq.stores.dynamodb.schema import Item

logger = logging.getLogger(__name__)
# Keys of a listing that are read at a time: at first about as many as a page of tasks, then many, because
# stale tasks may be passed over.
FIRST_KEYS: Final = 100
MORE_KEYS: Final = 1000

# Tasks that a listing of TAKEN tasks reads first: many that lease records name may have ended.
FIRST_HELD: Final = 6


class DynamoAgenda(DynamoPart):
    """The tasks of a queue that have a due time: delayed, leased or stale."""

    @override
    def due(self, queue: str, now: float, limit: int) -> Due:
        """Return up to `limit` due tasks; tidy the lease records on the way.

        It reads about `limit` entries of the index, and at least a page of each shard.
        """
        due: list[Task] = []
        pages_left = ceil(limit / DUE_PAGE_KEYS)
        cut_short = False
        for partition in self.keyspace.due_partitions(queue):
            arguments = due_query(partition, "<=", now) | {"Limit": DUE_PAGE_KEYS}
            for ids in map(queries.ids_of, queries.pages_of(self.calls, arguments)):
                due += self._due_among(ids, now, limit - len(due))
                pages_left -= 1
                if len(due) >= limit:
                    return Due(due, more=True)
                if pages_left <= 0:
                    cut_short |= len(ids) == DUE_PAGE_KEYS
                    break
        # A lease record is tidied once nothing that it names is due.
        return Due(due, more=cut_short or bool(due))

    @override
    def delayed(self, queue: str, limit: int) -> list[Task]:
        """Return delayed tasks on the first page of each shard, the next due first."""
        tasks = map(decode_if_task, self.calls.get_many(self._coming_ids(queue)))
        delayed = [task for task in tasks if task is not None and task.delayed]
        return sorted(delayed, key=lambda task: task.not_before or 0.0)[:limit]

    @override
    def leased(self, queue: str, limit: int) -> list[Task]:
        """Return TAKEN tasks named on the first page of each shard, the earliest to expire first."""
        records = filter(is_lease_record, self.calls.get_many(self._coming_ids(queue)))
        named = {task_id for record in records for task_id in task_ids_of(record)}
        tasks = map(decode_if_task, self.calls.get_many(sorted(named)))
        held = [task for task in tasks if task is not None and task.status is TaskStatus.TAKEN]
        return sorted(held, key=lambda task: task.lease_until or 0.0)[:limit]

    @override
    def next_due(self, queue: str, now: float) -> float | None:
        first = [
            self.calls.query(due_query(partition, ">", now) | {"Limit": 1})
            for partition in self.keyspace.due_partitions(queue)
        ]
        return min((due for page in first for _id, due in queries.due_entries(page)), default=None)

    @override
    def listed(
        self, queue: str, status: TaskStatus, now: float, created_after: float, start_after: str | None
    ) -> Iterator[tuple[Task | None, str]]:
        if status is TaskStatus.TAKEN:
            return self._held(queue, "" if start_after is None else checked_id(start_after, "cursor"))
        after = None if start_after is None else self._parsed_cursor(start_after)
        if after is not None and "dueShard" in after:
            return self._pending(self._due_keys(queue, after))
        lines = self.line_records.all_lines(queue, now)
        searches = {
            each.name: each.query_after(after)
            for each in self.partitions.live(queue, lines, created_after, now)
        }
        keys = self._keys(("pendingShard", self.partitions.index.range_key), searches, after)
        return self._pending(chain(keys, self._due_keys(queue, None)))

    def _due_keys(self, queue: str, after: Item | None) -> Iterator[Item]:
        searches = {name: due_query(name) for name in self.keyspace.due_partitions(queue)}
        if after is not None and after["dueShard"]["S"] in searches:
            searches[after["dueShard"]["S"]]["ExclusiveStartKey"] = after
        return self._keys(("dueShard", "dueAt"), searches, after)

    def _parsed_cursor(self, cursor: str) -> Item:
        """Return the key in a cursor.

        Raises:
            ValueError: If there is none.
        """
        try:
            key: Item = json.loads(base64.urlsafe_b64decode(cursor))
            if "dueShard" not in key:
                self.partitions.index.place(key)
            str(key["dueShard" if "dueShard" in key else "pendingShard"]["S"])
        except UNREADABLE:
            msg = f"cursor: must be that of a page of PENDING tasks, got {quoted(cursor)}"
            raise ValueError(msg) from None
        return key

    def _keys(
        self, index_keys: tuple[str, str], searches: dict[str, Item], after: Item | None
    ) -> Iterator[Item]:
        """Yield the keys of items in an index, partition by partition.

        Args:
            index_keys: Names of its hash key and its range key.
            searches: A query for each partition.
            after: The key to start after; None to begin.
        """
        start = "" if after is None else after[index_keys[0]]["S"]
        for partition in sorted(name for name in searches if name >= start):
            pages = queries.pages_of(self.calls, searches[partition] | {"Limit": FIRST_KEYS}, MORE_KEYS)
            for item in chain.from_iterable(page["Items"] for page in pages):
                yield {name: item[name] for name in (*index_keys, KEY)}

    def _pending(self, keys: Iterator[Item]) -> Iterator[tuple[Task, str]]:
        """Yield the PENDING tasks among the given keys, each with its cursor."""
        keys = (key for key in keys if not key[KEY]["S"].startswith(RESERVED_ID_PREFIX))
        size = DUE_PAGE_KEYS
        while some := {key[KEY]["S"]: key for key in islice(keys, size)}:
            found = {task.task_id: task for task in self._tasks(some) if task.status is TaskStatus.PENDING}
            for task_id, key in some.items():
                # A task that is moving may be in both indexes.
                if (task := found.get(task_id)) is not None and task.delayed is ("dueShard" in key):
                    yield task, _cursor(key)
            size = BATCH_GET_KEYS

    def _held(self, queue: str, start_after: str) -> Iterator[tuple[Task | None, str]]:
        """Yield the TAKEN tasks in the order of their ids; lease records name each of them.

        They also name tasks that have ended since: None is yielded for each of these.
        """
        named = {task_id for record in self._lease_records(queue) for task_id in task_ids_of(record)}
        ids = (task_id for task_id in sorted(named) if task_id > start_after)
        size = FIRST_HELD
        while some := list(islice(ids, size)):
            held = {task.task_id: task for task in self._tasks(some) if task.status is TaskStatus.TAKEN}
            yield from ((held.get(task_id), task_id) for task_id in some)
            size = min(2 * size, BATCH_GET_KEYS) if len(held) == len(some) else FIRST_HELD

    def _lease_records(self, queue: str) -> Iterator[Item]:
        due = map(due_query, self.keyspace.due_partitions(queue))
        pages = chain.from_iterable(queries.pages_of(self.calls, arguments) for arguments in due)
        ids = chain.from_iterable(map(queries.ids_of, pages))
        records = self.calls.get_many([item_id for item_id in ids if item_id.startswith(LEASE_PREFIX)])
        return filter(is_lease_record, records)

    def _tasks(self, ids: Iterable[str]) -> Iterator[Task]:
        return filter(None, map(decode_if_task, self.calls.get_many(list(ids))))

    def _coming_ids(self, queue: str) -> list[str]:
        return [
            item_id
            for partition in self.keyspace.due_partitions(queue)
            for item_id, _due_at in earliest_due(self.calls, partition, MAX_EPOCH_SECONDS)
        ]

    def _due_among(self, ids: Sequence[str], now: float, limit: int) -> list[Task]:
        items = self.calls.get_many(ids)
        tasks = self._readable(items, now)
        due = [task for task in tasks if task.delayed and (task.not_before or 0.0) <= now]
        for record in filter(is_lease_record, items):
            if len(due) < limit and due_at(record) <= now:
                due += self._expired_leases(record, now)
        return due[:limit]

    def _expired_leases(self, record: Item, now: float) -> list[Task]:
        """Return the tasks of a lease record with expired leases; if there is none, tidy the record."""
        held = [
            (task, task.lease_until)
            for task in self._readable(self.calls.get_many(task_ids_of(record)), now)
            if task.status is TaskStatus.TAKEN and task.lease_until
        ]
        expired = [task for task, until in held if until <= now]
        if not expired:
            self._tidy_lease_record(record, next_check(record, [until for _, until in held], now))
        return expired

    def _readable(self, items: Iterable[Item], now: float) -> list[Task]:
        """Return the readable tasks; discard the unreadable ones unless their lease is running."""
        tasks = []
        for item in filter(is_task, items):
            if (task := decode_if_task(item)) is not None:
                tasks.append(task)
            elif seconds_or(item.get("leaseUntil"), now) <= now:
                self.unreadable.discard_if_damaged(item, now)
        return tasks

    def _tidy_lease_record(self, record: Item, next_due_at: float | None) -> None:
        """Move a lease record to the next time at which it is due, or delete it if there is none.

        If its process has rewritten it since it was read, leave it unchanged.
        """
        unchanged = condition("attribute_not_exists(#requestToken)")
        if (seen := record.get("requestToken")) is not None:
            unchanged = condition("#requestToken = :seen", seen=seen)
        try:
            if next_due_at is None:
                self.calls.delete(record["taskId"]["S"], unchanged)
            else:
                moved = record | {"requestToken": {"S": new_token()}} | due_attributes(next_due_at)
                self.calls.put(moved, unchanged)
        except ConditionFailed:
            logger.debug("lease record %s was rewritten by its process", record["taskId"]["S"])

    @override
    def tidy(self, queue: str, now: float, limit: int) -> int:
        done = self.line_records.tidy(queue, now, limit)
        return done + self.stale_items.shed_passed_over(queue, now, limit - done)

    @override
    def tidy_in_claim(self, queue: str, now: float, limit: int) -> int:
        return self.line_records.tidy_in_claim(queue, now)

    @override
    def take_unreadable(self) -> int:
        discarded, self.unreadable.discarded = self.unreadable.discarded, 0
        return discarded


def _cursor(key: Item) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()
