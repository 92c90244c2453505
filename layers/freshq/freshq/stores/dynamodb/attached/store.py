"""The store whose tasks are records of an application's table."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from freshq.errors import (
    DamagedTask,
    FreshqError,
    IllegalTransition,
    NotFound,
    quoted,
)
from freshq.model.fields import RESERVED_ID_PREFIX
from freshq.model.lifecycle import new_token
from freshq.model.task import LIVE, Task, TaskStatus
from freshq.stores.base import Conflict
from freshq.stores.dynamodb.attached.attach import Attachment, attach_table, wanted_shape
from freshq.stores.dynamodb.batches import each_in_threads
from freshq.stores.dynamodb.calls import (
    ConditionFailed,
    InvalidUpdate,
    TableCalls,
    check_table_name,
    translated,
)
from freshq.stores.dynamodb.items import (
    INDEX_KEYS,
    MUTABLE_FIELDS,
    PUT_FIELDS,
    UNREADABLE,
    attributes,
    condition,
    decode,
    is_task,
    milliseconds,
    mutable_attributes,
    replace_arguments,
    update_arguments,
    version_of,
    with_new_version,
)
from freshq.stores.dynamodb.key import NUMBER
from freshq.stores.dynamodb.queries import all_tasks
from freshq.stores.dynamodb.schema import KEY, POSITION, RECORD, Item, plain_values, typed_value
from freshq.stores.dynamodb.store import TableStore
from freshq.stores.dynamodb.table import examine_shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.stores.base import Finding, Guard, OnConflict, PutResult
    from freshq.stores.dynamodb.items import Keyspace
    from freshq.stores.dynamodb.key import KeyValue

logger = logging.getLogger(__name__)
# A record can be put from these states, and while it is PENDING past its deadline.
PUTTABLE: Final = (TaskStatus.CANCELLED, TaskStatus.SHED)
# The attributes that only a queued record has.
QUEUED_ATTRIBUTES: Final = (
    *(field.name for field in MUTABLE_FIELDS + PUT_FIELDS if field.name not in (KEY, "ttl", "requestToken")),
    *("putToken", "endedToken", POSITION, *INDEX_KEYS),
)
MAX_RANGE_KEY_BYTES: Final = 1024
# A record in a queue is deleted by force only.
_NOT_QUEUED: Final = (
    "(attribute_not_exists(#taskStatus) OR NOT (#taskStatus IN (:pending, :taken))"
    " OR (#taskStatus = :pending AND #deadline <= :now))"
)


class AttachedDynamoDBStore(TableStore):
    """Tasks as records of an application's table. They are only updated, so its attributes survive."""

    def __init__(self, attachment: Attachment, client: DynamoDBClient) -> None:
        """Use an attached table.

        Args:
            attachment: How it was attached.
            client: A low-level boto3 client.
        """
        check_table_name(attachment.table)
        super().__init__(
            TableCalls(client, attachment.table, attachment.names),
            attachment.shards,
            attachment.status_index,
        )
        self._attachment = attachment

    @property
    def is_by_time(self) -> bool:
        """Whether the creation time orders the lines, and not an attribute of the records."""
        return self._attachment.order_by is None

    @override
    def create_table(self) -> None:
        """Attach the table unless it is attached; return once it can be used."""
        with translated(self.calls.table):
            attach_table(self.calls.client, self._attachment)

    @override
    def examine(self) -> Iterator[Finding]:
        """Look only at what attaching asks for: stream, TTL and backups are the application's."""
        wanted = wanted_shape(self._attachment)
        with translated(self.calls.table):
            yield from examine_shape(self.calls.client, wanted)

    @override
    def put_over(self, tasks: Sequence[Task], on_conflict: OnConflict) -> Sequence[PutResult]:
        raise NotImplementedError("records of an application are never replaced")

    @override
    def insert(self, tasks: Sequence[Task]) -> list[bool | FreshqError]:
        """Put records that exist into the queue.

        Returns:
            For each task, in order: True, or the error that says why its record cannot be put.
        """
        return self._announced(tasks, self._insert)

    @override
    def _insert(self, task: Task) -> bool | FreshqError:
        try:
            self.calls.update(self._ordered(_put_arguments(task, self.keyspace)))
        except ConditionFailed as failed:
            return self._refusal(task, failed.item)
        except FreshqError as error:
            return error  # the caller reports it with the other outcomes
        return True

    def _ordered(self, arguments: Item) -> Item:
        """Return the arguments of an UpdateItem, with a copy of the attribute that orders the table."""
        if self._attachment.order_by is None:
            return arguments
        attribute_type = self._attachment.order_by.attribute_type
        conditions = ["attribute_type(#orderBy, :orderType)"]
        values: Item = {":orderType": {"S": attribute_type}}
        if attribute_type != NUMBER:
            conditions.append("size(#orderBy) BETWEEN :one AND :mostBytes")
            values[":mostBytes"] = {"N": str(MAX_RANGE_KEY_BYTES)}
        update = arguments["UpdateExpression"].replace("SET ", "SET #position = #orderBy, ", 1)
        return _also(arguments | {"UpdateExpression": update}, " AND ".join(conditions), values)

    def _refusal(self, task: Task, item: Item | None) -> FreshqError:
        """Return the error that says why a record was not queued."""
        if item is None:
            return NotFound.of_record(task.task_id)
        try:
            found = _task_or_record(item)
        except DamagedTask as damage:
            return damage
        status = found.status_at(task.updated)
        if status is TaskStatus.UNDER_CONSTRUCTION:
            return IllegalTransition.not_ready(task.task_id, status)
        if status in LIVE:
            return IllegalTransition.already_queued(task.task_id, status, found.queue)
        if status in (TaskStatus.READY, *PUTTABLE) and (order_by := self._attachment.order_by):
            place = order_by.name, order_by.attribute_type
            return IllegalTransition.no_position(task.task_id, status, *place)
        return IllegalTransition.of_task(task.task_id, "put", status, TaskStatus.READY)

    @override
    def get(self, task_id: str) -> Task | None:
        """Return a record by its id, strongly consistent; READY if it is in no queue."""
        if task_id.startswith(RESERVED_ID_PREFIX):
            return None
        item = self.calls.get(self.checked_id(task_id))
        return None if item is None else _task_or_record(item)

    def move(self, task: Task, guard: Guard) -> Task:
        """Replace a task like `replace`; if an attribute orders the table, copy it again.

        Raises:
            Conflict: If the guard does not hold.
            IllegalTransition: If the attribute is missing or of another type; nothing was changed.
        """
        return self._placed(task, guard, self._ordered(replace_arguments(task, guard, self.keyspace)))

    def _placed(self, task: Task, guard: Guard, arguments: Item) -> Task:
        """Store a new version of a task that has, or gets, its place in the order."""
        try:
            return self._replace(task, guard, arguments)
        except Conflict as conflict:
            order_by, current = self._attachment.order_by, conflict.current
            if order_by is None or current is None or not guard.admits(current):
                raise
            place = order_by.name, order_by.attribute_type
            raise IllegalTransition.no_position(task.task_id, current.status, *place) from None

    @override
    def replace(self, task: Task, guard: Guard) -> Task:
        if TaskStatus.READY not in (task.status, guard.status):
            arguments = replace_arguments(task, guard, self.keyspace)
            if self._attachment.order_by is not None and task.status is TaskStatus.PENDING:
                # Otherwise no index would list it.
                arguments = _also(arguments, "attribute_exists(#position)", {})
            return self._placed(task, guard, arguments)
        try:
            item = self.calls.update(_unqueued_arguments(task, guard, self.keyspace)) or {}
        except ConditionFailed as failed:
            current = None if failed.item is None else _task_or_record(failed.item)
            raise Conflict(current) from None
        return replace(task, version=version_of(item))

    def checked_id(self, task_id: str, name: str = "task_id") -> str:
        """Return the id of a record in its canonical form.

        Args:
            task_id: The id.
            name: The argument, for messages.

        Raises:
            ValueError: If no record of the table can have this id.
        """
        return self._attachment.key.checked_id(task_id, name)

    def record_id(self, hash_key: KeyValue, range_key: KeyValue | None) -> str:
        """Return the id of the record with a key.

        Raises:
            ValueError: If it is no key of the table.
        """
        return self._attachment.key.record_id(hash_key, range_key)

    def put_record(self, record: Mapping[str, Any], *, merge: bool) -> str:
        """Write the attributes of a record that differ; return its id. The last of two writers wins.

        Values that are equal as JSON keep their stored form: a set remains a set, a number keeps its digits.

        Args:
            record: The attributes, including the key.
            merge: Whether to keep the other attributes of the record.

        Raises:
            ValueError: If an attribute is freshq's, or of a type that DynamoDB does not have, or the key is
                missing or wrong.
        """
        typed = self._typed(record)
        key = self._record_key(typed)
        item_id = self.calls.names.key.id_of(key)
        current = self.calls.get(item_id)
        stored = {} if current is None else current[RECORD]["M"]
        plain = plain_values(stored)
        changes = {
            name: value
            for name, value in typed.items()
            if name not in key and not (name in plain and typed_value(plain[name]) == value)
        }
        removed = [] if merge else [name for name in stored if name not in typed]
        self._write_attributes(key, changes, removed)
        return item_id

    def _typed(self, record: Mapping[str, Any]) -> Item:
        """Return the attributes of a record in the form of the low-level client."""
        typed: Item = {}
        for name, value in record.items():
            if not isinstance(name, str) or not name or name.startswith(self.calls.names.prefix):
                msg = f"record: cannot have the attribute {quoted(name)}; a name must be text, and those that"
                msg += f" begin with {self.calls.names.prefix} are freshq's"
                raise ValueError(msg)
            try:
                typed |= typed_value({name: value})["M"]
            except (TypeError, ValueError) as error:
                msg = f"record: {quoted(name)} has a value that DynamoDB cannot store ({error})"
                raise ValueError(msg) from error
        return typed

    def _record_key(self, typed: Item) -> Item:
        """Return the key attributes of a record."""
        table_key = self.calls.names.key
        parts = [part for part in (table_key.hash, table_key.range) if part is not None]
        for part in parts:
            if part.attribute_type not in typed.get(part.name, {}):
                msg = f"record: must have the table's key {table_key}, got {quoted(sorted(typed))}"
                raise ValueError(msg)
        key = {part.name: typed[part.name] for part in parts}
        table_key.checked_id(table_key.id_of(key), "record")
        return key

    def _write_attributes(self, key: Item, changes: Item, removed: list[str]) -> None:
        """Write attributes under the application's own names, and remove the attributes in `removed`."""
        names = {f"#n{number}": name for number, name in enumerate([*changes, *removed])}
        places = list(names)
        assigned = ", ".join(f"{place} = :v{number}" for number, place in enumerate(places[: len(changes)]))
        dropped = ", ".join(places[len(changes) :])
        clauses = [f"SET {assigned}"] if assigned else []
        clauses += [f"REMOVE {dropped}"] if dropped else []
        arguments: Item = {"UpdateExpression": " ".join(clauses)} if clauses else {}
        if names:
            arguments["ExpressionAttributeNames"] = names
        if changes:
            values = {f":v{number}": value for number, value in enumerate(changes.values())}
            arguments["ExpressionAttributeValues"] = values
        with translated(self.calls.table):
            self.calls.client.update_item(TableName=self.calls.table, Key=key, **arguments)

    def get_record(self, record_id: str) -> dict[str, Any] | None:
        """Return the attributes of a record as JSON values; None if it does not exist."""
        item = self.calls.get(self.checked_id(record_id, "record_id"))
        return None if item is None else plain_values(item[RECORD]["M"])

    def record_key(self, record_id: str) -> dict[str, Any]:
        """Return the key attributes of the record with an id."""
        return plain_values(self._attachment.key.attributes(self.checked_id(record_id, "record_id")))

    def delete_record(self, record_id: str, now: float, *, force: bool) -> None:
        """Delete a record.

        Args:
            record_id: Its id.
            now: Current time in seconds.
            force: Whether to delete it even if it is in a queue.

        Raises:
            NotFound: If the record does not exist.
            IllegalTransition: If it is in a queue, and `force` is not set.
        """
        record_id = self.checked_id(record_id, "record_id")
        deletable = condition("attribute_exists(#taskId)")
        if not force:
            waiting, held = ({"S": status.value} for status in LIVE)
            values = {"pending": waiting, "taken": held, "now": milliseconds(now)}
            deletable = condition(f"attribute_exists(#taskId) AND {_NOT_QUEUED}", **values)
        try:
            self.calls.delete(record_id, deletable)
        except ConditionFailed as failed:
            if failed.item is None:
                raise NotFound.of_record(record_id) from None
            status, where = (failed.item.get(name, {}).get("S", "?") for name in ("taskStatus", "taskQueue"))
            raise IllegalTransition.already_queued(record_id, status, where) from None

    def unqueued(self, start_after: str | None = None) -> Iterator[Task]:
        """Yield the records that are READY, in the order of the table."""
        arguments: Item = {"FilterExpression": "attribute_not_exists(#taskStatus)"}
        if start_after is not None:
            arguments["ExclusiveStartKey"] = {KEY: {"S": start_after}}
        items = self.calls.scan(arguments)
        records = (item for item in items if not item[KEY]["S"].startswith(RESERVED_ID_PREFIX))
        return filter(None, map(_ready, records))

    @override
    def purge(self, queue: str) -> int:
        """Take every record out of the queue, TAKEN ones included; return how many."""

        def take_out(item: Item) -> bool:
            arguments = _leave_arguments(queue, item[KEY]["S"], self.keyspace)
            try:
                try:
                    self.calls.update(arguments)
                except InvalidUpdate:
                    self.calls.update(with_new_version(arguments))
            except ConditionFailed:
                return False  # it was taken out or deleted in between
            return True

        return sum(each_in_threads(take_out, all_tasks(self.calls, queue)))

    @override
    def delete(self, task: Task, guard: Guard) -> None:
        """Take a record out of the queue if the guard holds; the record remains, and is READY."""
        out = replace(task, status=TaskStatus.READY, request_token=new_token())
        try:
            self.replace(out, guard)
        except Conflict as conflict:
            if conflict.current is not None:
                raise


def _put_arguments(task: Task, keyspace: Keyspace) -> Item:
    """Return the arguments of the UpdateItem that queues a record which exists and is unqueued."""
    changes: Item = mutable_attributes(task, keyspace) | attributes(task, PUT_FIELDS)
    changes["putToken"] = changes["requestToken"]
    del changes[KEY]
    puttable = [f":puttable{index}" for index in range(len(PUTTABLE))]
    unqueued = (
        "attribute_exists(#taskId) AND "
        f"(attribute_not_exists(#taskStatus) OR #taskStatus IN ({', '.join(puttable)}) "
        "OR (#taskStatus = :pending AND #deadline <= :now))"
    )
    values: Item = {f"puttable{index}": {"S": status.value} for index, status in enumerate(PUTTABLE)}
    values |= {"pending": {"S": TaskStatus.PENDING.value}, "now": changes["taskUpdated"]}
    return update_arguments(task.task_id, changes, condition(unqueued, **values), keyspace)


def _unqueued_arguments(task: Task, guard: Guard, keyspace: Keyspace) -> Item:
    """Return the arguments of the UpdateItem that makes a record READY, or changes a READY one."""
    if task.status is TaskStatus.READY:
        changes = dict.fromkeys(QUEUED_ATTRIBUTES) | {"requestToken": {"S": task.request_token}}
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
    unchanged = {"ConditionExpression": " AND ".join(conditions), "ExpressionAttributeValues": values}
    return update_arguments(task.task_id, changes, unchanged, keyspace)


def _leave_arguments(queue: str, task_id: str, keyspace: Keyspace) -> Item:
    """Return the arguments of the UpdateItem that takes a record out of a queue and makes it READY."""
    changes = dict.fromkeys(QUEUED_ATTRIBUTES) | {"requestToken": {"S": new_token()}}
    return update_arguments(task_id, changes, condition("#taskQueue = :queue", queue={"S": queue}), keyspace)


def _also(arguments: Item, more: str, values: Item) -> Item:
    """Return the arguments of an UpdateItem with one more condition."""
    return arguments | {
        "ConditionExpression": f"{arguments['ConditionExpression']} AND {more}",
        "ExpressionAttributeValues": arguments["ExpressionAttributeValues"] | values,
    }


def _task_or_record(item: Item) -> Task:
    """Return the task of a record; if it is in no queue, READY with neither times nor queue.

    Raises:
        DamagedTask: If it is damaged, or of a newer version.
    """
    if is_task(item):
        return decode(item)
    try:
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
    except UNREADABLE as error:
        raise DamagedTask(item["taskId"]["S"], error) from error


def _ready(item: Item) -> Task | None:
    """Return the task of a record that is in no queue; None if it cannot be read, so that a list goes on."""
    try:
        return _task_or_record(item)
    except DamagedTask as damage:
        logger.warning("left out: %s", damage)
        return None
