"""Read events from Lambda: their records, and parts of records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def records_of(event: object) -> list[Mapping[str, Any]]:
    """Return the records of a batch.

    Args:
        event: The event of a stream or a topic, as Lambda passes it.

    Raises:
        ValueError: If it is not an object with a list of objects under Records.
    """
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, list) or not all(isinstance(record, Mapping) for record in records):
        raise ValueError("event: needs Records, a list of records, as a stream or a topic sends it")
    return records


def table_of(record: Mapping[str, Any]) -> str:
    """Return the name of the table whose stream has a record; empty if the record does not have it.

    Raises:
        ValueError: If the field with the name is not a string.
    """
    arn = text_of(record, "eventSourceARN") or ""
    return arn.partition(":table/")[2].partition("/")[0]


def part_of(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object inside a record; empty if it is missing or null.

    Raises:
        ValueError: If it has another type.
    """
    part = whole.get(name)
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        msg = f"record: {name} must be an object, got {type(part).__name__}"
        raise ValueError(msg)
    return part


def text_of(whole: Mapping[str, Any], name: str) -> str | None:
    """Return a string inside a record; None if it is missing or null.

    Raises:
        ValueError: If it has another type.
    """
    text = whole.get(name)
    if text is not None and not isinstance(text, str):
        msg = f"record: {name} must be a string, got {type(text).__name__}"
        raise ValueError(msg)
    return text
