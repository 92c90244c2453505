"""The store on a table that an application has already: its records are queued where they are.

Of a record freshq changes its own attributes only. In none of its queues' states, that is READY, a
record has none but the count of its changes and the name of the last one.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from freshq.errors import AlreadyQueued, FreshqError, IllegalTransition, NotReady, TaskNotFound
from freshq.model.new_task import RESERVED_ID_PREFIX
from freshq.model.task import Task, TaskStatus
from freshq.stores.base import ConflictError
from freshq.stores.dynamodb import queries
from freshq.stores.dynamodb.attachment import Attachment, attach_table
from freshq.stores.dynamodb.calls import ConditionFailed, translated
from freshq.stores.dynamodb.items import (
    Keyspace,
    conditioned,
    decode,
    is_task,
    mutable_attributes,
    new_request_token,
    update_arguments,
    version_count,
    version_of,
)
from freshq.stores.dynamodb.names import RECORD, Item, Names
from freshq.stores.dynamodb.puts import PUT_THREADS
from freshq.stores.dynamodb.store import DynamoDBStore
from freshq.stores.dynamodb.values import plain_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.stores.base import Guard
    from freshq.stores.conflicts import OnConflict, PutResult

# From these a record can be put; after its deadline also a waiting one.
PUTTABLE: Final = (TaskStatus.CANCELLED, TaskStatus.SHED)
# Attributes that a record has once it was changed, in a queue or not.
KEPT: Final = ("requestToken",)


class AttachedDynamoDBStore(DynamoDBStore):
    """Tasks as records of an application's table, which it keeps as they are."""

    def __init__(self, attachment: Attachment, client: DynamoDBClient) -> None:
        """Use a table that was attached.

        Args:
            attachment: How it was attached.
            client: A low-level boto3 client.
        """
        names = Names.attached(attachment.key)
        super().__init__(attachment.table, client, shards=attachment.shards, names=names)
        self._attachment = attachment

    def create_table(self) -> None:
        """Attach the table, if anything of that is left to do; return once it can be used."""
        with translated(self._calls.table):
            attach_table(self._calls.client, self._attachment)

    def _insert(self, task: Task) -> bool | FreshqError:
        """Put a record that is there into the queue; return its refusal if its state forbids that."""
        arguments = _put_arguments(task, self._keyspace)
        try:
            self._calls.update(arguments)
        except ConditionFailed as failed:
            return _refusal(task, failed.item)
        except FreshqError as error:
            return error  # the caller reports it beside the outcome of the others
        return True

    def put_over(self, tasks: Sequence[Task], on_conflict: OnConflict) -> list[PutResult]:
        """Refuse: to write an item anew would take the application's attributes from it."""
        msg = (
            f"on_conflict: {on_conflict!r} of {len(tasks)} tasks, on the attached table {self._calls.table!r}"
        )
        raise ValueError(msg + "; the records are not the queue's to replace")

    def get(self, task_id: str) -> Task | None:
        """Return a record by its id, strongly consistent; in no queue it is READY."""
        if task_id.startswith(RESERVED_ID_PREFIX):
            return None
        item = self._calls.get(task_id)
        return None if item is None else _task_or_record(item)

    def replace(self, task: Task, guard: Guard) -> Task:
        """Store the new version of a record if the guard holds, be it in the queue or not."""
        if TaskStatus.READY not in (task.status, guard.status):
            return super().replace(task, guard)
        try:
            item = self._calls.update(_between_queues(task, guard, self._keyspace)) or {}
        except ConditionFailed as failed:
            current = None if failed.item is None else _task_or_record(failed.item)
            raise ConflictError(current) from None
        return replace(task, version=version_of(item))

    def dead(self, queue: str) -> Iterator[Task]:
        """Yield the dead letters of a queue, by shard and time, at the cost of those that there are."""
        for shard in range(self._keyspace.shards):
            ids = queries.partition_ids(self._calls, self._keyspace.dead(queue, shard))
            while some := list(islice(ids, queries.DUE_PAGE_KEYS)):
                tasks = [decode(item) for item in self._calls.get_many(some) if is_task(item)]
                found = {task.task_id: task for task in tasks if task.status is TaskStatus.FAILURE}
                yield from (found[task_id] for task_id in some if task_id in found)

    def purge(self, queue: str) -> int:
        """Take every record out of the queue, what is in work included; return how many."""

        def take_out(task: Task) -> bool:
            try:
                self._calls.update(_leave_arguments(queue, task.task_id, self._keyspace))
            except ConditionFailed:
                return False  # somebody else took it out, or deleted it
            return True

        with ThreadPoolExecutor(PUT_THREADS, thread_name_prefix="freshq-purge") as pool:
            return sum(pool.map(take_out, self.scan(queue)))

    def delete(self, task: Task, guard: Guard) -> None:
        """Take a record out of the queue if the guard holds; the record stays, and is READY."""
        out = replace(task, status=TaskStatus.READY, request_token=new_request_token())
        try:
            self.replace(out, guard)
        except ConflictError as conflict:
            if conflict.current is not None:
                raise


def _put_arguments(task: Task, keyspace: Keyspace) -> Item:
    """Return the arguments of the UpdateItem that queues a record: there, and in no queue."""
    changes: Item = mutable_attributes(task, keyspace) | {
        "taskQueue": {"S": task.queue},
        "putToken": {"S": task.request_token},
        "taskGroup": None if task.group is None else {"S": task.group},
    }
    puttable = [f":puttable{index}" for index in range(len(PUTTABLE))]
    out_of_queue = (
        f"(attribute_not_exists(#taskStatus) OR #taskStatus IN ({', '.join(puttable)}) "
        "OR (#taskStatus = :pending AND #deadline <= :now))"
    )
    values: Item = {name: {"S": status.value} for name, status in zip(puttable, PUTTABLE, strict=True)}
    values |= {":pending": {"S": TaskStatus.PENDING.value}, ":now": changes["taskUpdated"]}
    arguments = update_arguments(task.task_id, changes, version_count(keyspace))
    return conditioned(arguments, ["attribute_exists(#taskId)", out_of_queue], values)


def _refusal(task: Task, item: Item | None) -> FreshqError:
    """Return why a record was not queued."""
    if item is None:
        return TaskNotFound(task.task_id, task.queue)
    found = _task_or_record(item)
    if found.status is TaskStatus.UNDER_CONSTRUCTION:
        return NotReady(task.task_id)
    if found.status in (TaskStatus.PENDING, TaskStatus.TAKEN):
        return AlreadyQueued(task.task_id, found.queue, found.status)
    return IllegalTransition(task.task_id, "put", found.status, TaskStatus.READY)


def _between_queues(task: Task, guard: Guard, keyspace: Keyspace) -> Item:
    """Return the arguments of the UpdateItem that makes a record READY, or changes one that is."""
    if task.status is TaskStatus.READY:
        changes = _without_queue(keyspace) | {"requestToken": {"S": task.request_token}}
    else:
        changes = mutable_attributes(task, keyspace) | {"taskQueue": {"S": task.queue}}
    conditions = ["attribute_exists(#taskId)"]
    values: Item = {}
    if guard.status is TaskStatus.READY:
        conditions.append("attribute_not_exists(#taskStatus)")
    else:
        conditions += ["#taskStatus = :guardStatus", "#taskQueue = :guardQueue"]
        values |= {":guardStatus": {"S": guard.status.value}, ":guardQueue": {"S": task.queue}}
    if guard.request_token:
        conditions.append("#requestToken = :guardRequest")
        values[":guardRequest"] = {"S": guard.request_token}
    else:
        conditions.append("attribute_not_exists(#requestToken)")
    return conditioned(update_arguments(task.task_id, changes, version_count(keyspace)), conditions, values)


def _leave_arguments(queue: str, task_id: str, keyspace: Keyspace) -> Item:
    """Return the arguments of the UpdateItem that takes a record out of a queue, READY afterwards."""
    changes = _without_queue(keyspace) | {"requestToken": {"S": new_request_token()}}
    arguments = update_arguments(task_id, changes, version_count(keyspace))
    return conditioned(arguments, ["#taskQueue = :queue"], {":queue": {"S": queue}})


def _without_queue(keyspace: Keyspace) -> Item:
    """Return the removal of every attribute that only a record of a queue has."""
    blank = Task("", "", TaskStatus.READY, created=0, updated=0, deadline=0, expires=0, request_token="")
    names = [*mutable_attributes(blank, keyspace), "taskQueue", "taskGroup", "putToken"]
    return dict.fromkeys(name for name in names if name not in KEPT)


def _task_or_record(item: Item) -> Task:
    """Return the task that a record is; READY, with no times and no queue, if it is in none."""
    if is_task(item):
        return decode(item)
    return Task(
        task_id=item["taskId"]["S"],
        queue="",
        status=TaskStatus.READY,
        created=0.0,
        updated=0.0,
        deadline=0.0,
        expires=0,
        request_token=item["requestToken"]["S"] if "requestToken" in item else "",
        payload=plain_values(item[RECORD]["M"]),
        version=version_of(item),
    )
