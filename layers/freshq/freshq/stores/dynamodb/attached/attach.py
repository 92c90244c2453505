"""Attach a queue to an application's table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Final

from freshq.errors import StoreError, TableMissing, quoted
from freshq.model.fields import RESERVED_ID_PREFIX
from freshq.model.lifecycle import new_token
from freshq.policy.order import Order
from freshq.stores.dynamodb.calls import TableCalls, check_table_name, default_client, translated
from freshq.stores.dynamodb.examining import Wanted
from freshq.stores.dynamodb.key import KeyPart, TableKey
from freshq.stores.dynamodb.queries import StatusIndex
from freshq.stores.dynamodb.schema import (
    CREATED_ATTRIBUTE,
    DUE_INDEX,
    KEY,
    ORDER_BY,
    OWN_ID,
    POSITION,
    POSITION_INDEX,
    STATUS_INDEX_ATTRIBUTE,
    Item,
    Names,
    table_definition,
)
from freshq.stores.dynamodb.table import (
    POLL_SECONDS,
    TableChanges,
    attribute_types,
    index_names,
    is_on_demand,
    serves,
    throughput,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from types_boto3_dynamodb import DynamoDBClient

ATTACH_RECORD: Final = f"{RESERVED_ID_PREFIX}attach"
# A life of put, claim and complete takes three writes of the record, one insertion into the index and one
# removal, and a quarter of a lease record.
RECORD_WRITES: Final = 3
INDEX_AND_LEASE_UNITS: Final = 2.25
BYTES_A_WRITE_UNIT: Final = 1024
# The most that freshq's attributes add to a queued record.
OWN_BYTES: Final = 700
# Attributes by which the records of the priority queue on DynamoDB say that they are in it, or dead letters.
OLD_QUEUE: Final = ("queued", "DLQ")
# Values of such an attribute that count as true.
YES: Final[tuple[Item, ...]] = ({"N": "1"}, {"S": "1"}, {"BOOL": True})
# Limit of the name of a key attribute.
MAX_NAME_BYTES: Final = 255


@dataclass(frozen=True, slots=True)
class Attachment:
    """The attachment of a table, current or wanted.

    Attributes:
        table: Name of the table.
        key: Its key.
        order: Default order of its queues.
        shards: Partitions of each line and of the due index.
        order_by: The records' attribute that orders each line, and its type; None for the creation time.
    """

    table: str
    key: TableKey
    order: Order = Order.FIFO
    shards: int = 1
    order_by: KeyPart | None = None

    @property
    def names(self) -> Names:
        """The names that freshq uses in the table."""
        return Names.attached(self.key, "" if self.order_by is None else self.order_by.name)

    @property
    def status_index(self) -> StatusIndex:
        """The index of the claimable tasks."""
        if self.order_by is None:
            return StatusIndex()
        return StatusIndex(POSITION_INDEX, POSITION)


@dataclass(frozen=True, slots=True)
class AttachPlan:
    """The changes that attaching makes to a table.

    Attributes:
        missing: Names of the indexes to add.
        present: Names of the indexes that exist.
        records: Approximate number of records; DynamoDB counts them every six hours.
        record_bytes: Approximate size of a record.
        provisioned_units: Read and write units of each index; None if billing is per request.
    """

    missing: tuple[str, ...]
    present: tuple[str, ...]
    records: int
    record_bytes: int
    provisioned_units: tuple[int, int] | None

    @property
    def life_write_units(self) -> float:
        """Write units to put, claim and complete a record of that size, claimed one at a time."""
        units = ceil((self.record_bytes + OWN_BYTES) / BYTES_A_WRITE_UNIT)
        return RECORD_WRITES * units + INDEX_AND_LEASE_UNITS


def plan_attachment(
    client: DynamoDBClient, attachment: Attachment, old_queue: Iterable[str] | None = None
) -> AttachPlan:
    """Return the changes that attaching would make, without making them.

    Args:
        client: A low-level boto3 client.
        attachment: How to attach.
        old_queue: As for `attach_table`.

    Raises:
        ValueError: If the table, or its earlier attachment, does not permit it.
        StoreError: If DynamoDB did not answer, or the table does not exist.
    """
    description = TableChanges(client, attachment.table).description()
    _check(client, description, attachment, old_queue)
    wanted = [index["IndexName"] for index in index_definitions(attachment, description)]
    records, size_bytes = description.get("ItemCount", 0), description.get("TableSizeBytes", 0)
    return AttachPlan(
        missing=tuple(name for name in wanted if name not in index_names(description)),
        present=tuple(name for name in wanted if name in index_names(description)),
        records=records,
        record_bytes=round(size_bytes / records) if records else 0,
        provisioned_units=None if is_on_demand(description) else _units(description),
    )


def attach_table(
    client: DynamoDBClient,
    attachment: Attachment,
    *,
    old_queue: Iterable[str] | None = None,
    on_status: Callable[[str, str], None] | None = None,
    poll_seconds: float = POLL_SECONDS,
) -> None:
    """Add the missing indexes, one at a time; return once the table can be used.

    Args:
        client: A low-level boto3 client.
        attachment: How to attach.
        old_queue: Attributes by which records say that they are in another queue; their records are read if
            no index has the attribute as its hash key. None: `OLD_QUEUE`, as far as an index has them.
        on_status: Called at each poll with an index, or the table, and its status.
        poll_seconds: Time between polls.

    Raises:
        ValueError: If the table, or its earlier attachment, does not permit it; nothing was changed.
        StoreError: If DynamoDB did not answer. Added indexes stay; attach again to continue.
    """
    changes = TableChanges(client, attachment.table, on_status=on_status, poll_seconds=poll_seconds)
    description = changes.description()
    _check(client, description, attachment, old_queue)
    for index in index_definitions(attachment, description):
        changes.add_index(index, own_definitions(attachment))
    _write_record(client, attachment)


def described_key(client: DynamoDBClient, table: str, key: str) -> TableKey:
    """Return the key of a table, with the types that its description has.

    Args:
        client: A low-level boto3 client.
        table: Name of the table.
        key: Name of its hash key.

    Raises:
        ValueError: If the table has another hash key.
        TableMissing: If the table does not exist.
        StoreError: If DynamoDB did not answer.
    """
    try:
        found = _key_of(TableChanges(client, table).description())
    except TableMissing as error:
        where = f"in region {client.meta.region_name} of this account"
        msg = f"table {table!r}: does not exist {where}; check its name, the region and the credentials, "
        raise TableMissing(msg + "or create it first: it is your own table") from error
    if found.hash.name != key:
        msg = f"key: the hash key of table {table!r} is {found.hash.name!r}, got {quoted(key)}"
        raise ValueError(msg)
    return found


def checked_key_name(key: object, name: str = "key") -> str:
    """Return the name of a key attribute, given as the argument `name`.

    Raises:
        ValueError: If DynamoDB allows no such name.
    """
    if not isinstance(key, str) or not 0 < len(key.encode(errors="replace")) <= MAX_NAME_BYTES:
        msg = f"{name}: must be the name of an attribute, 1 to {MAX_NAME_BYTES} bytes, got {quoted(key)}"
        raise ValueError(msg)
    return key


def _key_of(description: Item) -> TableKey:
    types = attribute_types(description)
    names = {key["KeyType"]: key["AttributeName"] for key in description["KeySchema"]}
    if not types.keys() >= set(names.values()) or "HASH" not in names:
        state = f"is {description['TableStatus']}, and its key is not known"
        msg = f"table {description['TableName']!r}: {state}; try again once it can be used"
        raise StoreError(msg)
    parts = {key_type: KeyPart(name, types[name]) for key_type, name in names.items()}
    return TableKey(parts["HASH"], parts.get("RANGE"))


def read_attachment(client: DynamoDBClient, table: str, key: TableKey) -> Attachment | None:
    """Return how a table was attached; None if it was not attached, or not completely.

    Raises:
        StoreError: If DynamoDB did not answer, or the table does not exist.
    """
    item = TableCalls(client, table, Names.attached(key)).get(ATTACH_RECORD)
    if item is None or "order" not in item:
        return None
    order_by = None
    if ORDER_BY in item:
        order_by = KeyPart(item[ORDER_BY]["S"], item["orderType"]["S"])
    order, shards = Order(item["order"]["S"]), int(item["shards"]["N"])
    return Attachment(table, key, order, shards, order_by)


def open_attachment(
    table: str, client: DynamoDBClient | None, key: str | None, shards: int | None
) -> tuple[Attachment, DynamoDBClient]:
    """Return the attachment of a table, and a client for it.

    Raises:
        ValueError: If an argument is wrong, or contradicts the attachment.
        TableMissing: If the table does not exist, or is not attached.
    """
    key = checked_key_name(key)
    check_table_name(table)
    with translated(table):
        used = client or default_client()
    attachment = read_attachment(used, table, described_key(used, table, key))
    if attachment is None:
        msg = f"table {table!r}: not attached; run freshq table attach {table} --key {key}"
        raise TableMissing(msg)
    if shards is not None:
        _check_unchanged(attachment, replace(attachment, shards=shards))
    return attachment, used


def _write_record(client: DynamoDBClient, attachment: Attachment) -> None:
    record: Item = {
        KEY: {"S": ATTACH_RECORD},
        "order": {"S": attachment.order.value},
        "shards": {"N": str(attachment.shards)},
        "requestToken": {"S": new_token()},
    }
    if (order_by := attachment.order_by) is not None:
        record |= {ORDER_BY: {"S": order_by.name}, "orderType": {"S": order_by.attribute_type}}
    # `orderBy` is a name of freshq's own here.
    TableCalls(client, attachment.table, Names.attached(attachment.key)).put(record)


def _check(
    client: DynamoDBClient, description: Item, attachment: Attachment, old_queue: Iterable[str] | None
) -> None:
    """Reject a table that cannot hold freshq's items, was attached in another way, or is another queue."""
    table, key = attachment.table, attachment.key
    if _key_of(description) != key:
        msg = f"key: table {table!r} has the key {_key_of(description)}, got {key}"
        raise ValueError(msg)
    if attachment.order_by is not None:
        checked_key_name(attachment.order_by.name, "order_by")
    known = read_attachment(client, table, key)
    _check_unchanged(known, attachment)
    if known is None:
        _check_no_old_queue(client, description, attachment, old_queue)
    types = attribute_types(description)
    _check_indexes(description, attachment)
    for definition in own_definitions(attachment):
        name, wanted = definition["AttributeName"], definition["AttributeType"]
        if types.get(name, wanted) != wanted:
            msg = f"table: {table!r} uses {name!r} as a key of type {types[name]}, freshq as {wanted}"
            raise ValueError(msg)


def _check_indexes(description: Item, attachment: Attachment) -> None:
    """Reject an index with freshq's name that has other keys, or lacks attributes that freshq reads."""
    present = {index["IndexName"]: index for index in description.get("GlobalSecondaryIndexes", [])}
    for wanted in index_definitions(attachment, description):
        name = wanted["IndexName"]
        if name in present and not serves(present[name], wanted):
            msg = (
                f"table: {attachment.table!r} has an index {name!r} that is not freshq's: it has other keys,"
            )
            msg += " or lacks attributes that freshq reads; delete it, and attach again; nothing was changed"
            raise ValueError(msg)


def _check_no_old_queue(
    client: DynamoDBClient, description: Item, attachment: Attachment, old_queue: Iterable[str] | None
) -> None:
    """Reject a table whose records are in another queue: its consumers would run them beside freshq's."""
    indexes = {
        key["AttributeName"]: index["IndexName"]
        for index in description.get("GlobalSecondaryIndexes", [])
        for key in index["KeySchema"]
        if key["KeyType"] == "HASH"
    }
    named = OLD_QUEUE if old_queue is None else tuple(old_queue)
    for attribute in named:
        if old_queue is None and attribute not in indexes:
            continue
        checked_key_name(attribute, "old_queue")
        found = _queued_record(client, description, attribute, indexes.get(attribute))
        if found is None:
            continue
        msg = (
            f"old_queue: record {attachment.key.id_of(found)!r} of table {attachment.table!r} has "
            f"{attribute} = 1: it is in another queue, whose consumers may take it as well. Stop them, "
            f"remove {attribute} from the records, attach, and put what is left to do; nothing was changed"
        )
        raise ValueError(msg)


def _queued_record(
    client: DynamoDBClient, description: Item, attribute: str, index: str | None
) -> Item | None:
    """Return a record whose attribute says that it is in another queue; None if there is none."""
    table = description["TableName"]
    names = {"#old": attribute}
    if index is not None:
        yes = next((value for value in YES if attribute_types(description)[attribute] in value), None)
        if yes is None:
            return None
        with translated(table):
            page = client.query(
                TableName=table,
                IndexName=index,
                KeyConditionExpression="#old = :yes",
                ExpressionAttributeNames=names,
                ExpressionAttributeValues={":yes": yes},
                Limit=1,
            )
        return next(map(dict, page["Items"]), None)
    values = {f":yes{number}": value for number, value in enumerate(YES)}
    pages = client.get_paginator("scan").paginate(
        TableName=table,
        FilterExpression=f"#old IN ({', '.join(values)})",
        ExpressionAttributeNames=names,
        ExpressionAttributeValues=values,
    )
    with translated(table):
        return next((dict(item) for page in pages for item in page["Items"]), None)


def _check_unchanged(known: Attachment | None, attachment: Attachment) -> None:
    """Reject another number of shards or another order: tasks waiting elsewhere would never be claimed."""
    if known is None:
        return
    if known.order_by != attachment.order_by:
        was, got = (_by(each.order_by) for each in (known, attachment))
        msg = f"order_by: table {attachment.table!r} was attached {was}, got {got};"
        raise ValueError(msg + " that cannot change while records may be queued")
    if known.shards != attachment.shards:
        msg = f"shards: table {attachment.table!r} was attached with {known.shards}, got {attachment.shards};"
        raise ValueError(msg + " the number cannot change while records may be queued")


def _by(order_by: KeyPart | None) -> str:
    return "by time" if order_by is None else f"by {order_by.name!r} ({order_by.attribute_type})"


def own_definitions(attachment: Attachment) -> list[Item]:
    """Return the definitions of freshq's key attributes."""
    names = attachment.names
    own = attribute_types(table_definition(attachment.table))
    del own[KEY]
    if attachment.order_by is not None:
        own[POSITION] = attachment.order_by.attribute_type
        del own[CREATED_ATTRIBUTE]
    return [{"AttributeName": names.attribute(name), "AttributeType": code} for name, code in own.items()]


def wanted_shape(attachment: Attachment) -> Wanted:
    """Return what attaching asks of the table, for a comparison with what it is."""
    key = attachment.key
    parts = {"HASH": key.hash, "RANGE": key.range}
    present = {kind: part for kind, part in parts.items() if part is not None}
    own = [{"AttributeName": part.name, "AttributeType": part.attribute_type} for part in present.values()]
    return Wanted(
        attachment.table,
        [{"AttributeName": part.name, "KeyType": kind} for kind, part in present.items()],
        own + own_definitions(attachment),
        index_shapes(attachment),
        "attach the table again",
    )


def index_definitions(attachment: Attachment, description: Item) -> list[Item]:
    """Return the indexes as arguments of CreateTable, with the throughput of the table."""
    capacity = (
        {} if is_on_demand(description) else {"ProvisionedThroughput": throughput(*_units(description))}
    )
    return [shape | capacity for shape in index_shapes(attachment)]


def index_shapes(attachment: Attachment) -> list[Item]:
    """Return the keys and attributes of the indexes, as arguments of CreateTable."""
    names, status = attachment.names, attachment.status_index
    beside = [STATUS_INDEX_ATTRIBUTE, *([] if status.by_time else [CREATED_ATTRIBUTE])]
    # freshq's own items, which the due index lists, have their id here or in their key.
    due = _including(names, [OWN_ID]) if names.key.has_own_ids else {"ProjectionType": "KEYS_ONLY"}
    return [
        {
            "IndexName": names.index(name),
            "KeySchema": [
                {"AttributeName": names.attribute(hash_key), "KeyType": "HASH"},
                {"AttributeName": names.attribute(range_key), "KeyType": "RANGE"},
            ],
            "Projection": projection,
        }
        for name, hash_key, range_key, projection in (
            (status.name, "pendingShard", status.range_key, _including(names, beside)),
            (DUE_INDEX, "dueShard", "dueAt", due),
        )
    ]


def _including(names: Names, attributes: Iterable[str]) -> Item:
    return {"ProjectionType": "INCLUDE", "NonKeyAttributes": list(map(names.attribute, attributes))}


def _units(description: Item) -> tuple[int, int]:
    capacity = description["ProvisionedThroughput"]
    return capacity["ReadCapacityUnits"], capacity["WriteCapacityUnits"]
