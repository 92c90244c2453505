"""Turn stream records into events for the archive."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from freshq.aws.invocation import part_of, text_of
from freshq.errors import quoted
from freshq.model.codec import SCHEMA_VERSION, holder
from freshq.model.fields import EVENT_FIELDS, MAX_EPOCH_SECONDS, FieldType, without_missing
from freshq.stores.dynamodb.key import BINARY, NUMBER, TEXT, KeyPart, TableKey
from freshq.stores.dynamodb.schema import ATTACHED_PREFIX, id_in_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from freshq.stores.dynamodb.key import KeyValue

    Image = Mapping[str, Any]

T = TypeVar("T")
# Types of key attributes, and the maximum number of keys of a table: a hash key and a range key.
ATTRIBUTE_TYPES: Final = frozenset({TEXT, NUMBER, BINARY})
MAX_KEY_PARTS: Final = 2
TTL_PRINCIPAL: Final = "dynamodb.amazonaws.com"
# Fields of the event that copy an attribute of the item, with types.
_TYPES: Final = {
    FieldType.TEXT: str,
    FieldType.WHOLE: int,
    FieldType.REAL: float,
    FieldType.TIME: float,
}
_ATTRIBUTES: Final[Mapping[str, tuple[str, type[str | float | int]]]] = {
    field.event: (field.name, _TYPES[field.kind]) for field in EVENT_FIELDS if field.field != "task_id"
}


def landed_events(record: Mapping[str, Any], key: str | None = None) -> list[dict[str, Any]]:
    """Return the events of a DynamoDB stream record, as `landed_event` does.

    There are two if one write ended a task and put its successor in its place.
    """
    event = landed_event(record, key)
    change = part_of(record, "dynamodb")
    before, after = part_of(change, "OldImage"), part_of(change, "NewImage")
    ended = part_of(part_of(after, "endedTask"), "M")
    if event is None or not ended or "taskStatus" not in before:
        return [] if event is None else [event]
    if before.get("endedTask") == after.get("endedTask"):  # it has been there since an earlier write
        return [event]
    unheld = {name: value for name, value in before.items() if name not in ("leaseToken", "leaseUntil")}
    end = landed_event({**record, "dynamodb": {**change, "NewImage": {**unheld, **ended}}}, key) or {}
    return [end | {"event_id": f"{event['event_id']}-end"}, event]


def landed_event(record: Mapping[str, Any], key: str | None = None) -> dict[str, Any] | None:
    """Return the event of a DynamoDB stream record; None if the record is not of a task.

    Items without `taskStatus` are not tasks: shared and lease records, and application items before they are
    put. A task's INSERT is the first image that has it, its REMOVE follows the last one.

    Args:
        record: The record as Lambda or GetRecords returns it.
        key: The hash key of an attached table; None for a table of freshq's own.

    Returns:
        A flat JSON object without the task's missing fields. Times in milliseconds have
        microseconds as their fraction. A REMOVE has the task's last state, but no `updated_ms`: only
        `stream_ms` says when the item was removed.

    Raises:
        ValueError: If keys, ids or times are missing, or a part of the record is malformed.
    """
    change = part_of(record, "dynamodb")
    before, after = (_task(part_of(change, name), key) for name in ("OldImage", "NewImage"))
    image = after or before
    if image is None:
        return None
    event = {
        "schema_version": SCHEMA_VERSION,
        "event_id": required(text_of(record, "eventID"), "eventID"),
        "sequence": text_of(change, "SequenceNumber"),
        "change": _change_type(before, after),
        "stream_ms": stream_ms(change.get("ApproximateCreationDateTime")),
        "ttl_removal": after is None and _removed_by_ttl(record),
        "task_id": _task_id(required(part_of(change, "Keys"), "Keys"), image, key),
    }
    event |= {name: _value(image, *attribute) for name, attribute in _ATTRIBUTES.items()}
    token = _value(image, "leaseToken", str)
    event |= holder(None if token is None else str(token))
    if after is None:
        del event["updated_ms"]
    return without_missing(event)


def _task(image: Image, key: str | None) -> Image | None:
    """Return the image of a task under freshq's names; None for other images."""
    if key is not None:
        start = len(ATTACHED_PREFIX)
        image = {name[start:]: value for name, value in image.items() if name.startswith(ATTACHED_PREFIX)}
    return image if "taskStatus" in image else None


def _task_id(keys: Image, image: Image, key: str | None) -> str | float | int | None:
    """Return the id of a task.

    Raises:
        ValueError: If the keys do not belong to an attached table with this hash key.
    """
    if key is None:
        stored = _value(keys, "taskId", str) or _value(image, "taskId", str)
        return id_in_key(stored) if isinstance(stored, str) else stored
    parts = {name: KeyPart(name, next(iter(part_of(keys, name)), "")) for name in keys}
    types = {part.attribute_type for part in parts.values()}
    if key not in parts or len(parts) > MAX_KEY_PARTS or not types <= ATTRIBUTE_TYPES:
        msg = f"record: Keys must belong to the attached table, with the hash key {quoted(key)}"
        raise ValueError(msg)
    hash_key = parts.pop(key)
    table_key = TableKey(hash_key, next(iter(parts.values()), None))
    return table_key.id_of(
        {part.name: {part.attribute_type: _key_value(keys, part)} for part in (hash_key, *parts.values())}
    )


def _key_value(keys: Image, part: KeyPart) -> KeyValue:
    """Return the value of a key; Lambda passes binary data as base64, boto3 as bytes."""
    value = keys[part.name][part.attribute_type]
    if part.attribute_type == BINARY and isinstance(value, bytes):
        return value
    return part.value(text_of(part_of(keys, part.name), part.attribute_type) or "")


def _change_type(before: Image | None, after: Image | None) -> str:
    if after is None:
        return "REMOVE"
    # A record from another queue is new to this queue.
    return "MODIFY" if before is not None and before.get("taskQueue") == after.get("taskQueue") else "INSERT"


def required(value: T | None, name: str) -> T:
    """Return a required part of a record.

    Raises:
        ValueError: If it is missing or empty.
    """
    if not value:
        msg = f"record: {name} is missing; need a DynamoDB Streams record"
        raise ValueError(msg)
    return value


def _value(image: Image, attribute: str, python_type: type[str | float | int]) -> str | float | int | None:
    """Return an attribute; None if the image lacks it or gives it another type."""
    text = text_of(part_of(image, attribute), "S" if python_type is str else "N")
    if text is None:
        return None
    try:
        value = python_type(text)
    except ValueError:
        value = math.nan
    if isinstance(value, float) and not math.isfinite(value):
        msg = f"record: {attribute} must be a number, got {quoted(text)}"
        raise ValueError(msg)
    return value


def stream_ms(moment: object) -> int:
    """Return the time of a stream record in milliseconds; Lambda gives seconds, boto3 a datetime.

    Raises:
        ValueError: If it is not a valid time.
    """
    seconds = moment.astimezone(UTC).timestamp() if isinstance(moment, datetime) else moment
    if not isinstance(seconds, int | float) or not 0 <= seconds < MAX_EPOCH_SECONDS:
        raise ValueError("record: ApproximateCreationDateTime must be in seconds since the epoch")
    return round(seconds * 1000)


def _removed_by_ttl(record: Mapping[str, Any]) -> bool:
    """Return whether TTL removed the item; Lambda and GetRecords spell the fields differently."""
    identity = part_of(record, "userIdentity")
    principal = identity.get("principalId") or identity.get("PrincipalId")
    identity_type = identity.get("type") or identity.get("Type")
    return bool(identity_type == "Service" and principal == TTL_PRINCIPAL)


def match_events(record: Mapping[str, Any], table: str) -> list[dict[str, Any]]:
    """Return the events of a record of a table of matching; none for other items than resources and callers.

    Args:
        record: The record as Lambda or GetRecords returns it.
        table: Name of the table of resources.

    Raises:
        ValueError: If keys, ids or times are missing, or a part of the record is malformed.
    """
    from freshq.matching.history import numbered  # few stacks have such a table
    from freshq.matching.stores.dynamodb import is_caller, is_resource

    change = part_of(record, "dynamodb")
    partition = text_of(part_of(part_of(change, "Keys"), "pk"), "S") or ""
    if not (is_resource(partition) or is_caller(partition)):
        return []
    event_id = required(text_of(record, "eventID"), "eventID")
    sequence = required(text_of(change, "SequenceNumber"), "SequenceNumber")
    try:
        queue, events = _match_events(change, table, of_resource=is_resource(partition))
        return [event | {"queue": queue} for event in numbered(events, event_id, sequence)]
    except (KeyError, TypeError, AttributeError) as error:
        msg = f"record: the image of a resource or a caller is malformed ({type(error).__name__}: {error})"
        raise ValueError(msg) from error


def _match_events(change: Image, table: str, *, of_resource: bool) -> tuple[str, Iterator[dict[str, Any]]]:
    """Return the name of the queue, and its events for a change."""
    from freshq.matching.history import caller_events, queues_of, resource_events
    from freshq.matching.stores.dynamodb import CHANGED_AT, decode_caller, decode_resource
    from freshq.stores.dynamodb.items import seconds

    before, after = (dict(part_of(change, name)) or None for name in ("OldImage", "NewImage"))
    at = stream_ms(change.get("ApproximateCreationDateTime")) / 1000
    if after is not None:
        at = seconds(after[CHANGED_AT])
    resources, callers = queues_of(table)
    if of_resource:
        was, now = (None if one is None else decode_resource(one) for one in (before, after))
        return resources, resource_events(was, now, at)
    waited, waits = (None if one is None else decode_caller(one) for one in (before, after))
    return callers, caller_events(waited, waits, at)
