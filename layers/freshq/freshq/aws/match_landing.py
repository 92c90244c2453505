"""Events of resources and callers, from the stream of a table of matching. Few stacks have such a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from freshq.aws.invocation import part_of, text_of
from freshq.aws.landing import required, stream_ms
from freshq.matching.history import caller_events, numbered, queues_of, resource_events
from freshq.matching.stores.dynamodb import CHANGED_AT, decode_caller, decode_resource, is_caller, is_resource
from freshq.stores.dynamodb.items import seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from freshq.aws.landing import Image


def match_events(record: Mapping[str, Any], table: str) -> list[dict[str, Any]]:
    """Return the events of a stream record; none for other items than resources and callers.

    Args:
        record: The record as Lambda or GetRecords returns it.
        table: Name of the table of resources.

    Raises:
        ValueError: If keys, ids or times are missing, or a part of the record is malformed.
    """
    change = part_of(record, "dynamodb")
    partition = text_of(part_of(part_of(change, "Keys"), "pk"), "S") or ""
    if not (is_resource(partition) or is_caller(partition)):
        return []
    event_id = required(text_of(record, "eventID"), "eventID")
    sequence = required(text_of(change, "SequenceNumber"), "SequenceNumber")
    try:
        queue, events = _events(change, table, of_resource=is_resource(partition))
        return [event | {"queue": queue} for event in numbered(events, event_id, sequence)]
    except (KeyError, TypeError, AttributeError) as error:
        msg = f"record: the image of a resource or a caller is malformed ({type(error).__name__}: {error})"
        raise ValueError(msg) from error


def _events(change: Image, table: str, *, of_resource: bool) -> tuple[str, Iterator[dict[str, Any]]]:
    """Return the name of the queue, and its events for a change."""
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
