"""An application's attributes as JSON values: the payload of a record."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from freshq.stores.dynamodb.names import Item


def plain_values(record: Item) -> dict[str, Any]:
    """Return a record's attributes as JSON values.

    A whole number becomes an int, any other number the nearest float, a set a sorted list, and binary
    data base64 text.

    Args:
        record: Attributes in the form of the low-level client.
    """
    from boto3.dynamodb.types import TypeDeserializer  # noqa: PLC0415 - only attached tables need boto3

    deserialize = TypeDeserializer().deserialize
    return {name: _plain(deserialize(value)) for name, value in record.items()}


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever DynamoDB can hold
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, set):
        return sorted(_plain(inner) for inner in value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if type(value).__name__ == "Binary":  # boto3's class
        return base64.b64encode(bytes(value)).decode()
    return value


def typed_value(value: Any) -> Item:  # noqa: ANN401 - whatever DynamoDB can hold
    """Return a JSON value, Decimal, bytes or set in the form of the low-level client.

    Raises:
        TypeError: If DynamoDB has no such type.
        ArithmeticError: If a number is not finite, or has more than 38 digits.
    """
    from boto3.dynamodb.types import TypeSerializer  # noqa: PLC0415 - only attached tables need boto3

    return dict(TypeSerializer().serialize(_exact(value)))


def _exact(value: Any) -> Any:  # noqa: ANN401 - whatever DynamoDB can hold
    """Return a value with decimal numbers in place of floats."""
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, dict):
        return {name: _exact(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(inner) for inner in value]
    return {_exact(inner) for inner in value} if isinstance(value, set | frozenset) else value


def milliseconds(seconds: float) -> Item:
    """Return a time as a number of milliseconds, with microseconds as the fraction."""
    return {"N": f"{seconds * 1000:.3f}"}


def seconds(attribute: Item) -> float:
    """Return the time in an attribute of milliseconds, in seconds to the microsecond."""
    return round(float(attribute["N"]) / 1000, 6)


def seconds_or(attribute: Item | None, default: float) -> float:
    """Return the time in an attribute of milliseconds, or the default if it cannot be read."""
    try:
        return default if attribute is None else seconds(attribute)
    except (KeyError, TypeError, ValueError):
        return default
