"""Values of an application's attributes, as JSON values and in the form of the low-level client.

boto3's own conversion refuses numbers of 10^38 and more, and numbers below 10^-128, which DynamoDB has.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from freshq.stores.dynamodb.key import number_text

if TYPE_CHECKING:
    from freshq.stores.dynamodb.schema import Item


def plain_values(record: Item) -> dict[str, Any]:
    """Return a record's attributes as JSON values.

    A whole number becomes an int, any other number the nearest float, a set a sorted list, and binary
    data base64 text.

    Args:
        record: Attributes in the form of the low-level client.

    Raises:
        ValueError: If DynamoDB has no such type, or a number is none.
    """
    return {name: _plain(attribute) for name, attribute in record.items()}


def _plain(attribute: Item) -> Any:
    ((attribute_type, value),) = attribute.items()
    if attribute_type not in _PLAIN:
        msg = f"no attribute has the type {attribute_type!r:.20}"
        raise ValueError(msg)
    return _PLAIN[attribute_type](value)


def _plain_number(text: str) -> int | float:
    # Independent of the context, which the application may have changed.
    whole, parts = Decimal(number_text(text, "a number")).as_integer_ratio()
    return whole if parts == 1 else float(text)


def _sorted(attribute_type: str) -> Callable[[list[Any]], list[Any]]:
    return lambda values: sorted(map(_PLAIN[attribute_type], values))


# From the value of an attribute to its JSON value, by the attribute's type.
_PLAIN: Final[dict[str, Callable[[Any], Any]]] = {
    "S": str,
    "N": _plain_number,
    "B": lambda value: base64.b64encode(value).decode(),
    "BOOL": bool,
    "NULL": lambda _true: None,
    "M": plain_values,
    "L": lambda values: list(map(_plain, values)),
    "SS": _sorted("S"),
    "NS": _sorted("N"),
    "BS": _sorted("B"),
}


def typed_value(value: Any) -> Item:
    """Return a JSON value, Decimal, bytes or set in the form of the low-level client.

    Raises:
        TypeError: If DynamoDB has no such type.
        ValueError: If a number is not finite, or has another size or more digits than DynamoDB allows; if a
            text has a surrogate without its pair; or if a set is empty.
    """
    if value is None:
        return {"NULL": True}
    if isinstance(value, Mapping):
        return {"M": {_checked_name(name): typed_value(inner) for name, inner in value.items()}}
    if isinstance(value, list | tuple):
        return {"L": [typed_value(inner) for inner in value]}
    if isinstance(value, AbstractSet):
        return _typed_set(value)
    return {"BOOL": value} if isinstance(value, bool) else _typed_scalar(value)


def _typed_scalar(value: Any) -> Item:
    if isinstance(value, str):
        value.encode()  # raises an error for a surrogate
        return {"S": value}
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return {"N": number_text(str(value), "a number")}
    if isinstance(value, bytes | bytearray) or type(value).__name__ == "Binary":  # boto3's class
        return {"B": bytes(value)}
    msg = f"no attribute has the type {type(value).__name__}"
    raise TypeError(msg)


def _typed_set(values: AbstractSet[Any]) -> Item:
    members = [next(iter(_typed_scalar(value).items())) for value in values]
    types = {attribute_type for attribute_type, _value in members}
    if len(types) != 1:
        msg = "a set must have members of one type: text, numbers or bytes" if types else "a set is empty"
        raise ValueError(msg)
    return {f"{types.pop()}S": [value for _type, value in members]}


def _checked_name(name: Any) -> str:
    if not isinstance(name, str):
        msg = f"a name must be text, got {type(name).__name__}"
        raise TypeError(msg)
    name.encode()
    return name
