"""The tables: the names of attributes and indexes, the values of records, and the definition of a table."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from freshq.errors import StoreError
from freshq.model.fields import DEFAULT_NAME, QUEUE_KEY_PREFIX, RESERVED_ID_PREFIX
from freshq.stores.dynamodb.key import TableKey, number_text

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_dynamodb.type_defs import CreateTableInputTypeDef, WaiterConfigTypeDef


# An item or attribute value in the form of the low-level client, such as {"taskId": {"S": "a"}}.
Item: TypeAlias = dict[str, Any]
KEY: Final = "taskId"
# The attribute of an item that holds the application's attributes, as a map.
RECORD: Final = "record"
# If the key cannot hold it, freshq's own items have their id in this attribute.
OWN_ID: Final = "itemId"
# The application's attribute that orders a table, and the put's copy of it.
ORDER_BY: Final = "orderBy"
POSITION: Final = "position"
ATTACHED_PREFIX: Final = "freshq_"
ATTACHED_INDEX_PREFIX: Final = "freshq-"
# The position of a task that no index can list because it is damaged.
MISSING: Final[Item] = {}
# Number of cached expressions, and of cached lists of the names in them. A queue has a few dozen.
EXPRESSIONS_CACHED: Final = 256
_KEYS: Final = ("Key", "ExclusiveStartKey")
OWN_KEY: Final = TableKey.named(KEY)
STATUS_INDEX: Final = "status-created-index"
DUE_INDEX: Final = "due-index"
# The status index has this besides its keys, so that a query skips tasks that are stale by their own max age.
STATUS_INDEX_ATTRIBUTE: Final = "deadline"
TTL_ATTRIBUTE: Final = "ttl"
# Status of a table or an index that can be used and changed.
ACTIVE: Final = "ACTIVE"
# A waiter polls every second, for at most 2 minutes.
WAITER_CONFIG: Final[WaiterConfigTypeDef] = {"Delay": 1, "MaxAttempts": 120}
CREATED_ATTRIBUTE: Final = "taskCreated"
POSITION_INDEX: Final = "status-position-index"


def key_prefix(queue: str | None) -> str:
    """Return the prefix of a queue's keys: ids are unique within the queue, keys in the table.

    Args:
        queue: Its name; None for tasks of any queue under their ids alone.
    """
    return "" if queue in (None, DEFAULT_NAME) else f"{QUEUE_KEY_PREFIX}{queue}#"


def id_in_key(key: str) -> str:
    """Return the id of the task with a key in a table of freshq's own."""
    return key.partition("#")[2] if key.startswith(QUEUE_KEY_PREFIX) else key


def _without_queue(item: Mapping[str, Any]) -> Item:
    """Return an item of freshq's own tables with the id of its task for its key."""
    key = item[KEY]["S"] if KEY in item else ""
    return {**item, KEY: {"S": id_in_key(key)}} if key.startswith(QUEUE_KEY_PREFIX) else dict(item)


class IndexEntry(NamedTuple):
    """A claimable task in the index.

    Attributes:
        position: Its place in the order; comparable among the tasks of a table.
        created: Its creation time, in seconds.
        task_id: Its id.
        deadline: Its deadline, in seconds.
    """

    position: Any
    created: float
    task_id: str
    deadline: float


@dataclass(frozen=True, slots=True)
class Names:
    """The names in one table.

    Attributes:
        key: The table's key, which the task id names.
        prefix: Prefix of freshq's other attributes.
        index_prefix: Prefix of freshq's indexes.
        order_by: The application's attribute that orders the table; empty if time does.
        key_prefix: The prefix of the ids in the keys of the queue's tasks.
    """

    key: TableKey = OWN_KEY
    prefix: str = ""
    index_prefix: str = ""
    order_by: str = ""
    key_prefix: str = ""

    @classmethod
    def attached(cls, key: TableKey, order_by: str = "") -> Names:
        """Return the names in an attached table with this key, ordered by an attribute or by time."""
        return cls(key, ATTACHED_PREFIX, ATTACHED_INDEX_PREFIX, order_by)

    @property
    def is_attached(self) -> bool:
        """Whether the table belongs to an application, so that freshq only adds attributes to its records."""
        return bool(self.prefix)

    @property
    def differ(self) -> bool:
        """Whether any name or key in the table differs from freshq's own."""
        return self.is_attached or bool(self.key_prefix)

    def attribute(self, name: str) -> str:
        """Return the name of an attribute in the table."""
        if name == ORDER_BY and self.order_by:
            return self.order_by
        return self.key.hash.name if name == KEY else self.prefix + name

    def index(self, name: str) -> str:
        """Return the name of an index in the table."""
        return self.index_prefix + name

    def key_to_table(self, key: Mapping[str, Any]) -> Item:
        """Return the key of an item, or of an entry of an index, under the names in the table.

        Raises:
            ValueError: If no key has this id.
        """
        if not self.is_attached:
            own = self.key_prefix and not key[KEY]["S"].startswith(RESERVED_ID_PREFIX)
            return {**key, KEY: {"S": self.key_prefix + key[KEY]["S"]}} if own else dict(key)
        # An own item that was read has its key as the application's attributes.
        others = {self.attribute(name): value for name, value in key.items() if name not in (KEY, RECORD)}
        return self.key.attributes(key[KEY]["S"]) | others

    def to_table(self, item: Mapping[str, Any]) -> Item:
        """Return one of freshq's own items, or a whole task, under the names in the table."""
        own_id = item[KEY]["S"]
        named = {}
        if self.key.has_own_ids and own_id.startswith(RESERVED_ID_PREFIX):
            named = {self.attribute(OWN_ID): item[KEY]}
        return self.key_to_table(item) | named

    def from_table(self, item: Mapping[str, Any]) -> Item:
        """Return an item under freshq's names, with the application's attributes as its record."""
        if not self.is_attached:
            return _without_queue(item)
        start = len(self.prefix)
        own = {name[start:]: value for name, value in item.items() if name.startswith(self.prefix)}
        record = {name: value for name, value in item.items() if not name.startswith(self.prefix)}
        if self.key.hash.name in item:
            own_id = own.pop(OWN_ID, {}).get("S")
            own[KEY] = {"S": self.key.id_of(item, own_id)}
        if self.order_by and "taskStatus" in own:
            own.setdefault(POSITION, MISSING)
        return own | {RECORD: {"M": record}}

    def arguments(self, arguments: Mapping[str, Any]) -> Item:
        """Return the arguments of a call, its keys, item and index under the names in the table."""
        renamed = dict(arguments)
        for key in _KEYS:
            if key in renamed:
                renamed[key] = self.key_to_table(renamed[key])
        if "Item" in renamed:
            renamed["Item"] = self.to_table(renamed["Item"])
        if "IndexName" in renamed:
            renamed["IndexName"] = self.index(renamed["IndexName"])
        return renamed


# boto3's own conversion refuses numbers of 10^38 and more, and numbers below 10^-128, which DynamoDB has.
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


def table_definition(table: str) -> CreateTableInputTypeDef:
    """Return the arguments of CreateTable.

    Args:
        table: Name of the table.
    """
    return {
        "TableName": table,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": "taskId", "AttributeType": "S"},
            {"AttributeName": "pendingShard", "AttributeType": "S"},
            {"AttributeName": "taskCreated", "AttributeType": "N"},
            {"AttributeName": "dueShard", "AttributeType": "S"},
            {"AttributeName": "dueAt", "AttributeType": "N"},
        ],
        "KeySchema": [{"AttributeName": "taskId", "KeyType": "HASH"}],
        "GlobalSecondaryIndexes": [
            {
                "IndexName": STATUS_INDEX,
                "KeySchema": [
                    {"AttributeName": "pendingShard", "KeyType": "HASH"},
                    {"AttributeName": "taskCreated", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": [STATUS_INDEX_ATTRIBUTE]},
            },
            {
                "IndexName": DUE_INDEX,
                "KeySchema": [
                    {"AttributeName": "dueShard", "KeyType": "HASH"},
                    {"AttributeName": "dueAt", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            },
        ],
        "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        "SSESpecification": {"Enabled": True},
    }


def create_table(client: DynamoDBClient, table: str) -> None:
    """Create the table unless it exists; return once it can be used.

    Raises:
        StoreError: If a table of this name exists that is not freshq's; nothing was changed.
    """
    # If the table exists, the remaining steps are safe to repeat.
    wanted = table_definition(table)
    found = existing_table(client, wanted)
    indexes = {index.get("IndexName") for index in found.get("GlobalSecondaryIndexes", [])}
    if found.get("KeySchema") != wanted["KeySchema"] or not indexes >= {STATUS_INDEX, DUE_INDEX}:
        # TTL would delete another application's items.
        msg = f"table {table!r}: it is not freshq's; choose another name. Nothing was changed"
        raise StoreError(msg)
    ttl = client.describe_time_to_live(TableName=table).get("TimeToLiveDescription") or {}
    if ttl.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
        client.update_time_to_live(
            TableName=table, TimeToLiveSpecification={"Enabled": True, "AttributeName": TTL_ATTRIBUTE}
        )


def existing_table(client: DynamoDBClient, definition: CreateTableInputTypeDef) -> Item:
    """Create a table unless one of its name exists; return its description once it can be used."""
    with suppress(client.exceptions.ResourceInUseException):
        client.create_table(**definition)
    client.get_waiter("table_exists").wait(TableName=definition["TableName"], WaiterConfig=WAITER_CONFIG)
    return described_table(client, definition["TableName"])


def described_table(client: DynamoDBClient, table: str) -> Item:
    """Return the answer of DescribeTable, with defaults for fields that it may lack.

    DynamoDB leaves out fields of a table that is being deleted, and other implementations leave out what they
    do not have. An index without a status can be used. A description without keys has an empty list of them.
    """
    return completed(client.describe_table(TableName=table).get("Table") or {}, table)


def completed(answer: Mapping[str, Any], table: str) -> Item:
    """Return an answer of DescribeTable with what it may lack."""
    of_index: Item = {
        "KeySchema": [],
        "Projection": {"ProjectionType": "KEYS_ONLY"},
        "IndexStatus": ACTIVE,
    }
    found: Item = {
        "TableName": table,
        "TableStatus": ACTIVE,
        "KeySchema": [],
        "AttributeDefinitions": [],
        **_given(answer),
    }
    for kind in ("GlobalSecondaryIndexes", "LocalSecondaryIndexes"):
        found[kind] = [of_index | _given(index) for index in found.get(kind, [])]
    return found


def _given(answer: Mapping[str, Any]) -> Item:
    """Return the fields of an answer that have a value."""
    return {name: value for name, value in answer.items() if value is not None}
