"""Tasks as items: attributes, index keys and update expressions."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import DamagedTaskError
from freshq.model.new_task import RESERVED_ID_PREFIX
from freshq.model.task import LIVE, Task, TaskStatus
from freshq.model.validation import json_text
from freshq.policy.shedding import ShedReason
from freshq.stores.dynamodb.keyspace import (
    KEY,
    MISSING,
    POSITION,
    RECORD,
    Item,
    milliseconds,
    plain_values,
    seconds,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from freshq.model.lifecycle import ClaimMoment
    from freshq.stores.base import Guard
    from freshq.stores.dynamodb.keyspace import Keyspace

LEASE_PREFIX: Final = f"{RESERVED_ID_PREFIX}lease#"
CONTROL_PREFIX: Final = f"{RESERVED_ID_PREFIX}control#"

logger = logging.getLogger(__name__)


def mutable_attributes(task: Task, keyspace: Keyspace) -> Item:
    """Return the attributes that a change may change, index keys included; None for those to remove."""
    changes = {
        "taskStatus": {"S": task.status.value},
        "taskCreated": milliseconds(task.created),
        "taskUpdated": milliseconds(task.updated),
        "deadline": milliseconds(task.deadline),
        "ttl": {"N": str(task.expires)},
        "requestToken": {"S": task.request_token},
        "priority": {"N": str(task.priority)},
        "attempts": {"N": str(task.attempts)},
        "leaseToken": None if task.lease_token is None else {"S": task.lease_token},
        "error": None if task.error is None else {"S": task.error},
        "result": None if task.result is None else {"S": json_text(task.result)},
        "shedReason": None if task.shed_reason is None else {"S": task.shed_reason.value},
        "notBefore": _optional_milliseconds(task.not_before),
        "leaseUntil": _optional_milliseconds(task.lease_until),
        "putAt": _optional_milliseconds(task.put_at),
        "firstDue": _optional_milliseconds(task.first_due),
        "firstClaimAt": _optional_milliseconds(task.first_claim_at),
        "lastClaimAt": _optional_milliseconds(task.last_claim_at),
        "deadAt": _optional_milliseconds(task.dead_at),
        "progressFraction": None if task.progress_fraction is None else {"N": str(task.progress_fraction)},
        "progressStep": None if task.progress_step is None else {"S": task.progress_step},
    } | keyspace.index_attributes(task)
    if keyspace.is_attached:
        del changes["ttl"]
    return changes


def encode(task: Task, keyspace: Keyspace) -> Item:
    """Return the whole item of a task."""
    item = mutable_attributes(task, keyspace) | {
        "taskId": {"S": task.task_id},
        "taskQueue": {"S": task.queue},
        "payload": {"S": json_text(task.payload)},
        # A repeated put recognizes its task by it, even after a worker changed the task.
        "putToken": {"S": task.request_token},
        "taskGroup": None if task.group is None else {"S": task.group},
        "taskKind": None if task.kind is None else {"S": task.kind},
        "traceContext": None if task.trace_context is None else {"S": task.trace_context},
    }
    return {name: value for name, value in item.items() if value is not None}


def is_task(item: Item) -> bool:
    """Return whether an item is a task, not one of the store's own items."""
    return "taskStatus" in item


def decode_if_task(item: Item | None) -> Task | None:
    """Return the task that an item holds; None if there is no item, it is no task, or it cannot be read.

    What cannot be read is logged and left out, so that it never stops the others.
    """
    if item is None or not is_task(item):
        return None
    try:
        return decode(item)
    except DamagedTaskError as damage:
        logger.warning("left out: %s", damage)
        return None


def version_of(item: Item) -> int:
    """Return the number of changes that freshq made to an application's record; 0 for other items."""
    return int(item["version"]["N"]) if "version" in item else 0


def decode(item: Item) -> Task:
    """Return the task that an item holds.

    Raises:
        DamagedTaskError: If it is damaged, or of a newer version.
    """
    try:
        return _decoded(item)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedTaskError(item["taskId"]["S"], error) from error


def _decoded(item: Item) -> Task:
    if item.get(POSITION) == MISSING and item["taskStatus"]["S"] in LIVE:
        raise KeyError(POSITION)  # no index would list it
    return Task(
        task_id=item["taskId"]["S"],
        queue=item["taskQueue"]["S"],
        status=TaskStatus(item["taskStatus"]["S"]),
        created=seconds(item["taskCreated"]),
        updated=seconds(item["taskUpdated"]),
        deadline=seconds(item["deadline"]),
        expires=int(item["ttl"]["N"]) if "ttl" in item else 0,
        request_token=item["requestToken"]["S"],
        payload=_payload(item),
        priority=int(item["priority"]["N"]),
        group=_optional_text(item, "taskGroup"),
        attempts=int(item["attempts"]["N"]),
        not_before=_optional_seconds(item, "notBefore"),
        lease_token=_optional_text(item, "leaseToken"),
        lease_until=_optional_seconds(item, "leaseUntil"),
        error=_optional_text(item, "error"),
        result=json.loads(item["result"]["S"]) if "result" in item else None,
        shed_reason=ShedReason(item["shedReason"]["S"]) if "shedReason" in item else None,
        version=version_of(item),
        put_at=_optional_seconds(item, "putAt"),
        first_due=_optional_seconds(item, "firstDue"),
        kind=_optional_text(item, "taskKind"),
        first_claim_at=_first_claim_at(item),
        last_claim_at=_optional_seconds(item, "lastClaimAt"),
        dead_at=_optional_seconds(item, "deadAt"),
        progress_fraction=float(item["progressFraction"]["N"]) if "progressFraction" in item else None,
        progress_step=_optional_text(item, "progressStep"),
        trace_context=_optional_text(item, "traceContext"),
    )


def _first_claim_at(item: Item) -> float | None:
    """Return when a task was claimed first.

    A claim writes only its own time, as a statement of PartiQL cannot say "if there is none". So the first
    claim is the last one until the next change writes both.
    """
    return _optional_seconds(item, "firstClaimAt" if "firstClaimAt" in item else "lastClaimAt")


def _optional_milliseconds(seconds: float | None) -> Item | None:
    return None if seconds is None else milliseconds(seconds)


def _optional_text(item: Item, name: str) -> str | None:
    text: str | None = item[name]["S"] if name in item else None
    return text


def _optional_seconds(item: Item, name: str) -> float | None:
    return seconds(item[name]) if name in item else None


def _payload(item: Item) -> Any:
    """Return the payload of a task; None for a dead letter whose payload cannot be read."""
    if RECORD in item:
        return plain_values(item[RECORD]["M"])
    try:
        return json.loads(item["payload"]["S"])
    except (KeyError, TypeError, ValueError):
        if item["taskStatus"] == {"S": TaskStatus.FAILURE.value}:
            return None
        raise


def update_arguments(task_id: str, changes: Mapping[str, Item | None], added: str = "") -> Item:
    """Return the arguments of an UpdateItem.

    Args:
        task_id: Id of the task.
        changes: New values by name; None to remove the attribute.
        added: The attributes to increment, as an ADD clause without its keyword.
    """
    values: Item = {f":{name}": value for name, value in changes.items() if value is not None}
    if added:
        values[":one"] = {"N": "1"}
    return {
        "Key": {KEY: {"S": task_id}},
        "UpdateExpression": _clauses(changes) + (f" ADD {added}" if added else ""),
        "ExpressionAttributeValues": values,
    }


def conditioned(arguments: Item, conditions: Iterable[str], values: Item) -> Item:
    """Return the arguments of an UpdateItem, made conditional on all of some conditions."""
    return arguments | {
        "ConditionExpression": " AND ".join(conditions),
        "ExpressionAttributeValues": arguments["ExpressionAttributeValues"] | values,
    }


def version_count(keyspace: Keyspace) -> str:
    """Return the ADD clause of every change: an application's record counts them."""
    return "#version :one" if keyspace.is_attached else ""


def _clauses(changes: Mapping[str, Item | None]) -> str:
    assigned = [f"#{name} = :{name}" for name, value in changes.items() if value is not None]
    removed = [f"#{name}" for name, value in changes.items() if value is None]
    return ("SET " + ", ".join(assigned) if assigned else "") + (
        " REMOVE " + ", ".join(removed) if removed else ""
    )


def replace_arguments(task: Task, guard: Guard, keyspace: Keyspace) -> Item:
    """Return the arguments of the UpdateItem that stores a new version of a task if a guard holds."""
    condition, values = _guarded(task, guard)
    changes = mutable_attributes(task, keyspace)
    arguments = update_arguments(task.task_id, changes, version_count(keyspace))
    return conditioned(arguments, [condition], values)


def delete_condition(task: Task, guard: Guard) -> Item:
    """Return the condition of a DeleteItem that deletes a task if a guard holds."""
    condition, values = _guarded(task, guard)
    return {
        "ConditionExpression": condition,
        "ExpressionAttributeValues": values,
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def _guarded(task: Task, guard: Guard) -> tuple[str, Item]:
    """Return the condition that a guard holds, and its values."""
    conditions = ["#taskStatus = :guardStatus", "#taskQueue = :guardQueue"]
    values: Item = {":guardStatus": {"S": guard.status.value}, ":guardQueue": {"S": task.queue}}
    if guard.lease_token is not None:
        conditions.append("#leaseToken = :guardLease")
        values[":guardLease"] = {"S": guard.lease_token}
    if guard.request_token is not None:
        conditions.append("#requestToken = :guardRequest")
        values[":guardRequest"] = {"S": guard.request_token}
    return " AND ".join(conditions), values


def claim_arguments(task_id: str, token: str, queue: str, moment: ClaimMoment, keyspace: Keyspace) -> Item:
    """Return the arguments of the UpdateItem that claims a task if it is still claimable.

    The lease token is also the request token, so that a claim repeated after a lost reply is recognized.
    """
    changes: Item = {
        "taskStatus": {"S": TaskStatus.TAKEN.value},
        "taskUpdated": milliseconds(moment.now),
        "leaseToken": {"S": token},
        "leaseUntil": milliseconds(moment.lease_until),
        "ttl": {"N": str(moment.expires)},
        "requestToken": {"S": token},
        "lastClaimAt": milliseconds(moment.now),
        "pendingShard": None,
        "dueShard": None,
        "dueAt": None,
        "notBefore": None,
    }
    if keyspace.is_attached:
        del changes["ttl"]
    counted = ", ".join(filter(None, ["#attempts :one", version_count(keyspace)]))
    conditions = [
        "#taskStatus = :pending",
        "#taskQueue = :queue",
        "#deadline > :deadlineAfter",
        "#taskCreated > :createdAfter",
        "(attribute_not_exists(#notBefore) OR #notBefore <= :now)",
    ]
    values: Item = {
        ":pending": {"S": TaskStatus.PENDING.value},
        ":queue": {"S": queue},
        ":now": milliseconds(moment.now),
        ":createdAfter": milliseconds(moment.created_after),
        ":deadlineAfter": milliseconds(moment.deadline_after),
    }
    return conditioned(update_arguments(task_id, changes, counted), conditions, values)
