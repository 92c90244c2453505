"""An application's attributes as JSON values: the payload of a record."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from boto3.dynamodb.types import Binary, TypeDeserializer

if TYPE_CHECKING:
    from freshq.stores.dynamodb.names import Item

_deserializer = TypeDeserializer()


def plain_values(record: Item) -> dict[str, Any]:
    """Return a record's attributes as JSON values.

    A whole number becomes an int, any other number the nearest float, a set a sorted list, and binary
    data base64 text.

    Args:
        record: Attributes in the form of the low-level client.
    """
    return {name: _plain(_deserializer.deserialize(value)) for name, value in record.items()}


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever DynamoDB can hold
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, set):
        return sorted(_plain(inner) for inner in value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, Binary | bytes):
        raw: Any = value  # bytes() works on boto3's class, though its annotations do not say so
        return base64.b64encode(bytes(raw)).decode()
    return value
