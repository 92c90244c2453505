"""The event that the change stream is landed as: narrow, flat, and free of what tasks carry.

A lake outlives the secrets in it. So neither payload nor result nor error is landed, and of a lease
token, which lets its holder settle a task, only a digest.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA_VERSION: Final = 1
# Hexadecimal digits of a lease's digest: enough to tell the leases of one task apart.
LEASE_DIGITS: Final = 16
# What stands before this in a lease token names the worker.
WORKER_SEPARATOR: Final = ":"
TTL_PRINCIPAL: Final = "dynamodb.amazonaws.com"

_TEXTS: Final = {
    "queue": "taskQueue",
    "status": "taskStatus",
    "group": "taskGroup",
    "shed_reason": "shedReason",
}
_MILLISECONDS: Final = {
    "updated_ms": "taskUpdated",
    "created_ms": "taskCreated",
    "deadline_ms": "deadline",
    "lease_until_ms": "leaseUntil",
    "not_before_ms": "notBefore",
}
_COUNTS: Final = {"priority": "priority", "attempts": "attempts", "expires_s": "ttl"}


def landed_event(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the event of one DynamoDB Streams record; None if the record is about no task.

    The queue's own records (control, leases) have no `taskStatus`, nor has an item of another kind to
    which a task was not attached yet. A task begins with the first image that has one, and ends with
    the last: these are its INSERT and its REMOVE, whatever the item's were.

    Args:
        record: The record as Lambda hands it over, or as GetRecords returns it.

    Returns:
        A flat JSON object without the fields that the task does not have. Times in milliseconds have
        the microseconds as their fraction. A removal bears what the task was before, but for
        `updated_ms`: nobody wrote down when it was removed, so that there is only `stream_ms`.

    Raises:
        ValueError: If the record has no keys, no id or no number where one must be.
    """
    change = record.get("dynamodb") or {}
    before, after = (_task(change.get(image)) for image in ("OldImage", "NewImage"))
    image = after or before
    if image is None:
        return None
    event: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "event_id": _required(record, "eventID"),
        "sequence": change.get("SequenceNumber"),
        "change": "REMOVE" if after is None else "INSERT" if before is None else "MODIFY",
        "stream_ms": _stream_ms(_required(change, "ApproximateCreationDateTime")),
        "ttl_removal": after is None and _removed_by_ttl(record),
        "task_id": _text(_required(change, "Keys"), "taskId") or _text(image, "taskId"),
    }
    event |= {name: _text(image, attribute) for name, attribute in _TEXTS.items()}
    event |= {name: _number(image, attribute, float) for name, attribute in _MILLISECONDS.items()}
    event |= {name: _number(image, attribute, int) for name, attribute in _COUNTS.items()}
    event |= _holder(_text(image, "leaseToken"))
    if after is None:
        event["updated_ms"] = None
    return {name: value for name, value in event.items() if value is not None}


def _task(image: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return an image if it is one of a task."""
    return image if image and "taskStatus" in image else None


def _required(record: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - as the record has it
    value = record.get(name)
    if value is None or value == "":
        msg = f"record: {name} is missing; need a DynamoDB Streams record"
        raise ValueError(msg)
    return value


def _text(image: Mapping[str, Any], attribute: str) -> str | None:
    value = image.get(attribute)
    return None if value is None else value.get("S")


def _number(image: Mapping[str, Any], attribute: str, kind: type[float | int]) -> float | int | None:
    value = image.get(attribute)
    if value is None or "N" not in value:
        return None
    try:
        return kind(value["N"])
    except ValueError:
        msg = f"record: {attribute} must be a number, got {value['N']!r}"
        raise ValueError(msg) from None


def _stream_ms(moment: float | datetime) -> int:
    """Return the stream's own time, which is a whole second, in milliseconds; boto3 gives a datetime."""
    if isinstance(moment, datetime):
        return round(moment.astimezone(UTC).timestamp() * 1000)
    return round(float(moment) * 1000)


def _removed_by_ttl(record: Mapping[str, Any]) -> bool:
    """Return whether the service itself removed the item; Lambda and GetRecords spell it differently."""
    identity = record.get("userIdentity") or {}
    principal = identity.get("principalId") or identity.get("PrincipalId")
    kind = identity.get("type") or identity.get("Type")
    return bool(kind == "Service" and principal == TTL_PRINCIPAL)


def _holder(token: str | None) -> dict[str, str]:
    """Return the digest of a lease token, and the worker that it names, if it names one."""
    if token is None:
        return {}
    worker, separator, _ = token.rpartition(WORKER_SEPARATOR)
    lease = {"lease": sha256(token.encode()).hexdigest()[:LEASE_DIGITS]}
    return lease | ({"worker": worker} if separator and worker else {})
