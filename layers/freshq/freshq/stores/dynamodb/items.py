"""Tasks as items: attributes, index keys, and the arguments of updates."""

from __future__ import annotations

import json
import logging
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import DamagedTask
from freshq.model.fields import (
    FIELDS,
    NEVER,
    REMEMBERED_PUTS,
    RESERVED_ID_PREFIX,
    FieldType,
    SetBy,
)
from freshq.model.task import LIVE, Task, TaskStatus
from freshq.policy.shedding import ShedReason
from freshq.stores.dynamodb.calls import put_tokens
from freshq.stores.dynamodb.schema import (
    EXPRESSIONS_CACHED,
    KEY,
    MISSING,
    POSITION,
    RECORD,
    Item,
    plain_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from freshq.model.fields import StoredField
    from freshq.model.lifecycle import ClaimMoment
    from freshq.stores.base import Guard
    from freshq.stores.dynamodb.schema import IndexEntry
    from freshq.stores.lines import Line

LEASE_PREFIX: Final = f"{RESERVED_ID_PREFIX}lease#"
RECORD_PREFIX: Final = f"{RESERVED_ID_PREFIX}record#"
CONTROL_PREFIX: Final = f"{RESERVED_ID_PREFIX}control#"
ONE: Final[Item] = {"N": "1"}
PENDING: Final[Item] = {"S": TaskStatus.PENDING.value}
TAKEN: Final[Item] = {"S": TaskStatus.TAKEN.value}
# The condition of a claim.
CLAIMABLE: Final = (
    "#taskStatus = :pending AND #taskQueue = :queue AND #deadline > :deadlineAfter "
    "AND #taskCreated > :createdAfter AND (attribute_not_exists(#notBefore) OR #notBefore <= :now) "
    # A late copy of a claim must take neither a task that its own lease has released, nor a later task under
    # the same id.
    "AND #taskCreated < :createdBefore AND (attribute_not_exists(#endedToken) OR #endedToken <> :leaseToken)"
)
# The errors of reading a damaged item: `decimal` raises ArithmeticErrors, deeply nested JSON RecursionError.
UNREADABLE: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
# Names of partitions that a process keeps: every put and every claim needs some.
PARTITIONS_CACHED: Final = 4096
# Creation times of one producer differ by at least this.
CREATED_STEP_SECONDS: Final = 1e-6
logger = logging.getLogger(__name__)


TEXT, WHOLE, REAL, TIME, JSON = FieldType
# The payload is stored apart: an application's record is its payload.
_ATTRIBUTES: Final = tuple(field for field in FIELDS if field.field != "payload")
# The fields that only a put sets, and the fields that a change may change besides the index keys.
PUT_FIELDS: Final = tuple(field for field in _ATTRIBUTES if field.set_by is SetBy.PUT)
MUTABLE_FIELDS: Final = tuple(field for field in _ATTRIBUTES if field.set_by is not SetBy.PUT)
# What a put behind a held task changes, and what an event says of the end of the task before its successor.
FOLLOWED_FIELDS: Final = tuple(
    field for field in _ATTRIBUTES if field.field in ("lease_token", "expires", "successor_record")
)
_ENDED_FIELDS: Final = tuple(
    field
    for field in _ATTRIBUTES
    if field.field in ("status", "updated", "attempts", "expires", "shed_reason")
)
INDEX_KEYS: Final = ("pendingShard", "dueShard", "dueAt")
_SOURCES: Final = {field.field: field.source for field in FIELDS}
_VALUE_TYPES: Final = {TEXT: "S", WHOLE: "N", REAL: "N", TIME: "N", JSON: "S"}
_TIMES: Final = {field.field for field in _ATTRIBUTES if field.kind is TIME}
# How the values of attributes are read: times as milliseconds at first.
_READERS: Final[dict[FieldType, Callable[[str], Any]]] = {
    TEXT: str,
    WHOLE: int,
    REAL: float,
    TIME: float,
    JSON: json.loads,
}
_OWN_READERS: Final = {"status": TaskStatus, "shed_reason": ShedReason}
# The fields of a task: attribute, type of its value, how it is read, and whether every task has it.
_READ: Final = (
    *(
        (
            field.field,
            field.name,
            _VALUE_TYPES[field.kind],
            _OWN_READERS.get(field.field, _READERS[field.kind]),
            field.required,
        )
        for field in _ATTRIBUTES
    ),
    ("version", "version", "N", int, False),
)


def milliseconds(seconds: float) -> Item:
    """Return a time as a number of milliseconds, with microseconds as the fraction."""
    return {"N": f"{seconds * 1000:.3f}"}


def times(seconds: Mapping[str, float]) -> Item:
    """Return several times as `milliseconds` does, by name."""
    return {name: {"N": f"{value * 1000:.3f}"} for name, value in seconds.items()}


def seconds(attribute: Item) -> float:
    """Return the time in an attribute of milliseconds, in seconds to the microsecond."""
    return round(float(attribute["N"]) / 1000, 6)


def seconds_or(attribute: Item | None, default: float) -> float:
    """Return the time in an attribute of milliseconds, or the default if it cannot be read."""
    try:
        return default if attribute is None else seconds(attribute)
    except UNREADABLE:
        return default


def has_record(line: Line) -> bool:
    """Return whether a line is announced by a record: there may be any number of such lines on a level."""
    return line.group is not None or bool(line.of_class)


def level_name(level: int, of_class: str) -> str:
    """Return the name of a level, and of a class of lines in it if there is one."""
    return f"{level}.{of_class}" if of_class else str(level)


@dataclass(slots=True)
class Keyspace:
    """Names of the index partitions of one table.

    Attributes:
        shards: Partitions of each line and of the due index; may grow.
        is_attached: Whether the table is an application's. Then changes of a record are counted, and records
            never expire.
    """

    shards: int
    is_attached: bool = False

    def shard_of(self, item_id: str) -> int:
        """Return the shard of an item, by a hash that is the same in every process."""
        return zlib.crc32(item_id.encode()) % self.shards

    @staticmethod
    @lru_cache(maxsize=PARTITIONS_CACHED)
    def partition(queue: str, level: int, group: str | None, of_class: str, shard: int) -> str:
        """Return the partition of the claimable tasks of a level, a group and a class."""
        partition = f"{queue}#{TaskStatus.PENDING}#{level_name(level, of_class)}#{shard}"
        return partition if group is None else f"{partition}#{group}"

    def due(self, queue: str, shard: int) -> str:
        """Return a partition of the due index: delayed tasks and lease records."""
        return f"{queue}#DUE#{shard}"

    def due_partitions(self, queue: str) -> list[str]:
        """Return all partitions of a queue in the due index."""
        return [self.due(queue, shard) for shard in range(self.shards)]

    def dead(self, queue: str, shard: int) -> str:
        """Return a partition of the due index for dead letters, by the time of their death."""
        return f"{queue}#DEAD#{shard}"

    def index_attributes(self, task: Task) -> Item:
        """Return the index keys of a task at `task.updated`; None for those to remove.

        A claimable task is in the status index, a delayed one in the due index, a stale one in neither. Dead
        letters are also in the due index: finding them otherwise would take a read of the whole table.
        """
        keys: Item = dict.fromkeys(INDEX_KEYS)
        is_waiting = task.status is TaskStatus.PENDING and task.stale_at > task.updated
        if not (is_waiting or task.status is TaskStatus.FAILURE):
            return keys
        shard = self.shard_of(task.task_id)
        if task.status is TaskStatus.FAILURE:
            keys["dueShard"] = {"S": self.dead(task.queue, shard)}
            keys["dueAt"] = milliseconds(task.updated)
        elif task.not_before is not None:
            keys["dueShard"] = {"S": self.due(task.queue, shard)}
            keys["dueAt"] = milliseconds(task.not_before)
        else:
            line = (task.priority, task.group, task.line_class or "")
            keys["pendingShard"] = {"S": self.partition(task.queue, *line, shard)}
        return keys


def attributes(task: Task, fields: Iterable[StoredField]) -> Item:
    """Return the attributes for the given fields of a task; None for a field that it does not have."""
    found: Item = {}
    for field in fields:
        value = getattr(task, _SOURCES[field.field])
        if value is not None:
            text = f"{value * 1000:.3f}" if field.kind is TIME else str(value)
            found[field.name] = {_VALUE_TYPES[field.kind]: text}
        else:
            found[field.name] = None
    return found


def ended_attributes(task: Task) -> Item:
    """Return how a task ended, for the event of the write that puts its successor in its place."""
    return {name: value for name, value in attributes(task, _ENDED_FIELDS).items() if value is not None}


def mutable_attributes(task: Task, keyspace: Keyspace) -> Item:
    """Return the attributes that a change may change, index keys included; None for those to remove."""
    changes = attributes(task, MUTABLE_FIELDS) | keyspace.index_attributes(task)
    if keyspace.is_attached:
        del changes["ttl"]
    return changes


def encode(task: Task, keyspace: Keyspace) -> Item:
    """Return the whole item of a task."""
    item = attributes(task, _ATTRIBUTES) | keyspace.index_attributes(task)
    # A repeated put recognizes its task by the token, even after a worker changed the task.
    item |= {"payload": {"S": task.payload_text}, "putToken": item["requestToken"]}
    return {name: value for name, value in item.items() if value is not None}


def remembering(item: Item, replaced: Item) -> Item:
    """Return an item that also has the tokens of the last puts of the item that it replaces.

    By these a put that is repeated after a lost reply sees that a later put has replaced its task.
    """
    tokens = [item["putToken"]["S"], *put_tokens(replaced)]
    return item | {"putToken": {"S": " ".join(tokens[:REMEMBERED_PUTS])}}


def is_task(item: Item) -> bool:
    """Return whether an item is a task, not one of the store's own items."""
    return "taskStatus" in item


def decode_if_task(item: Item | None) -> Task | None:
    """Return the task in an item; None if there is no item, it is not a task, or it cannot be read.

    An unreadable task is logged and left out, so that it never blocks other tasks.
    """
    if item is None or "taskStatus" not in item:
        return None
    try:
        return decode(item)
    except DamagedTask as damage:
        logger.warning("left out: %s", damage)
        return None


def version_of(item: Item) -> int:
    """Return the number of changes that freshq made to an application's record; 0 for other items."""
    return int(item["version"]["N"]) if "version" in item else 0


def decode(item: Item) -> Task:
    """Return the task that an item holds.

    Raises:
        DamagedTask: If it is damaged, or of a newer version.
    """
    if item.get(POSITION) == MISSING and item.get("taskStatus", {}).get("S") in LIVE:
        raise DamagedTask(item["taskId"]["S"], KeyError(POSITION))  # no index would list it
    found: dict[str, Any] = {"expires": 0}
    try:
        for field, name, value_type, read, is_required in _READ:
            if name in item:
                found[field] = read(item[name][value_type])
            elif is_required:
                raise KeyError(name)
        found |= {field: round(found[field] / 1000, 6) for field in found.keys() & _TIMES}
        if found["deadline"] >= NEVER:
            found["deadline"] = None
        # A claim writes only its own time, because a PartiQL statement cannot say "if there is none". So the
        # first claim time is the last one until the next change writes both.
        found.setdefault("first_claim_at", found.get("last_claim_at"))
        return Task(**found, payload=_payload(item))
    except UNREADABLE as error:
        raise DamagedTask(item["taskId"]["S"], error) from error


def _payload(item: Item) -> Any:
    """Return the payload of a task; None for a dead letter whose payload cannot be read."""
    try:
        return plain_values(item[RECORD]["M"]) if RECORD in item else json.loads(item["payload"]["S"])
    except UNREADABLE:
        if item["taskStatus"] == {"S": TaskStatus.FAILURE.value}:
            return None
        raise


def update_arguments(
    task_id: str,
    changes: Mapping[str, Item | None],
    condition: Item,
    keyspace: Keyspace,
    added: str = "",
) -> Item:
    """Return the arguments of a conditional UpdateItem, which also counts the changes of a record.

    Args:
        task_id: Id of the task.
        changes: New values by name; None to remove the attribute.
        condition: As `condition` returns it.
        keyspace: Names of the table's index partitions.
        added: The attributes to increment, as an ADD clause without its keyword.
    """
    if keyspace.is_attached:
        added = f"{added}, #version :one" if added else "#version :one"
    values: Item = {f":{name}": value for name, value in changes.items() if value is not None}
    if added:
        values[":one"] = ONE
    removed = tuple([name for name, value in changes.items() if value is None])
    return {
        "Key": {KEY: {"S": task_id}},
        "UpdateExpression": _update_expression(tuple(changes), removed, added),
        "ConditionExpression": condition["ConditionExpression"],
        "ExpressionAttributeValues": values | condition["ExpressionAttributeValues"],
    }


@lru_cache(maxsize=EXPRESSIONS_CACHED)
def _update_expression(changed: tuple[str, ...], removed: tuple[str, ...], added: str) -> str:
    """Return an update expression.

    Args:
        changed: The names of all attributes that it changes.
        removed: The attributes among them that it removes.
        added: The attributes to increment, as an ADD clause without its keyword.
    """
    assigned = ", ".join([f"#{name} = :{name}" for name in changed if name not in removed])
    clauses = {"SET": assigned, "REMOVE": ", ".join([f"#{name}" for name in removed]), "ADD": added}
    return " ".join([f"{keyword} {clause}" for keyword, clause in clauses.items() if clause])


def replace_arguments(task: Task, guard: Guard, keyspace: Keyspace) -> Item:
    """Return the arguments of the UpdateItem that stores a new version of a task if a guard holds."""
    changes = mutable_attributes(task, keyspace)
    if guard.lease_token is not None and task.lease_token is None:
        changes["endedToken"] = {"S": guard.lease_token}
    return update_arguments(task.task_id, changes, guarded(task.queue, guard), keyspace)


def without_spare(arguments: Item) -> Item:
    """Return arguments of `replace_arguments` that store less, for an item that has no room left.

    They remove the token of the put, and do not copy the time of the only claim.
    """
    expression = arguments["UpdateExpression"].replace("REMOVE ", "REMOVE #putToken, ", 1)
    values = dict(arguments["ExpressionAttributeValues"])
    if ":firstClaimAt" in values and values[":firstClaimAt"] == values[":lastClaimAt"]:
        del values[":firstClaimAt"]
        expression = expression.replace("#firstClaimAt = :firstClaimAt, ", "")
    return arguments | {"UpdateExpression": expression, "ExpressionAttributeValues": values}


def with_new_version(arguments: Item) -> Item:
    """Return arguments of `update_arguments` that count a record's changes anew.

    For a record whose count is no number, to which DynamoDB can add nothing.
    """
    expression = arguments["UpdateExpression"].replace(" ADD #version :one", "")
    return arguments | {"UpdateExpression": expression.replace("SET ", "SET #version = :one, ", 1)}


def condition(expression: str, **values: Item) -> Item:
    """Return the condition of a write, with the values of the names that have a colon in it."""
    if not values:
        return {"ConditionExpression": expression}
    named = {f":{name}": value for name, value in values.items()}
    return {"ConditionExpression": expression, "ExpressionAttributeValues": named}


def guarded(queue: str, guard: Guard) -> Item:
    """Return the condition that a guard holds for a task of a queue."""
    conditions = ["#taskStatus = :guardStatus", "#taskQueue = :guardQueue"]
    values: Item = {":guardStatus": {"S": guard.status.value}, ":guardQueue": {"S": queue}}
    if guard.lease_token is not None:
        conditions.append("#leaseToken = :guardLease")
        values[":guardLease"] = {"S": guard.lease_token}
    if guard.request_token is not None:
        conditions.append("#requestToken = :guardRequest")
        values[":guardRequest"] = {"S": guard.request_token}
    return {"ConditionExpression": " AND ".join(conditions), "ExpressionAttributeValues": values}


def claim_arguments(
    entry: IndexEntry, token: str, queue: str, moment: ClaimMoment, keyspace: Keyspace
) -> Item:
    """Return the arguments of the UpdateItem that claims a task if it is still claimable.

    The lease token is also the request token, so that a claim repeated after a lost reply is recognized.

    Args:
        entry: The task, as the index shows it.
        token: The lease token.
        queue: The queue.
        moment: When it is claimed.
        keyspace: Names of the table's index partitions.
    """
    values = times(
        {
            ":now": moment.now,
            ":createdAfter": moment.created_after,
            ":createdBefore": entry.created + CREATED_STEP_SECONDS,
            ":deadlineAfter": moment.deadline_after,
            ":leaseUntil": moment.lease_until,
        }
    )
    changes: Item = {
        "taskStatus": TAKEN,
        "taskUpdated": values[":now"],
        "leaseToken": {"S": token},
        "leaseUntil": values[":leaseUntil"],
        "ttl": {"N": str(moment.expires)},
        "requestToken": {"S": token},
        "lastClaimAt": values[":now"],
        "notBefore": None,
        **dict.fromkeys(INDEX_KEYS),
    }
    if keyspace.is_attached:
        del changes["ttl"]
    values |= {":pending": PENDING, ":queue": {"S": queue}}
    claimable = {"ConditionExpression": CLAIMABLE, "ExpressionAttributeValues": values}
    return update_arguments(entry.task_id, changes, claimable, keyspace, added="#attempts :one")


def record_id(queue: str, name: str) -> str:
    """Return the key of a shared record of a queue."""
    return f"{RECORD_PREFIX}{queue}#{name}"


def record_values(item: Item) -> dict[str, Any]:
    """Return the values in the item of a shared record; none if it is damaged."""
    try:
        values = json.loads(item["values"]["S"])
    except UNREADABLE:
        values = None
    if not isinstance(values, dict):
        logger.warning("%s is damaged: it counts as empty", item["taskId"]["S"])
        return {}
    return values
