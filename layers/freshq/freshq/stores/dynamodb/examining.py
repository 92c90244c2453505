"""Compare a table with what freshq needs: keys, indexes, stream, capacity and rights.

Answers of other implementations of DynamoDB may lack any field. An absent field counts as right, except what
DynamoDB itself leaves out where there is none, such as the stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError

from freshq.model.fields import RESERVED_ID_PREFIX
from freshq.stores.base import Finding, Health
from freshq.stores.dynamodb.batches import ACCESS_DENIED

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.stores.dynamodb.schema import Item

# The archive needs the old image of a record that left the queue.
VIEW: Final = "NEW_AND_OLD_IMAGES"
# An index with a smaller share of its table's capacity throttles the writes of the table.
LEAST_CAPACITY_RATIO: Final = 0.5
# Where a description has the capacity of a table or an index, by billing.
CAPACITIES: Final = (
    ("ProvisionedThroughput", "WriteCapacityUnits"),
    ("OnDemandThroughput", "MaxWriteRequestUnits"),
)
COPY: Final = "a key cannot change: create another table, and `freshq copy` the tasks to it"
# A role may write only some of freshq's records; the probes name these.
PROBED: Final = {
    "UpdateItem": f"{RESERVED_ID_PREFIX}control#doctor",
    "DeleteItem": f"{RESERVED_ID_PREFIX}lease#doctor",
}
# The answers to a permitted probe: its condition does not hold, or the table is wrong, as another line says.
PERMITTED: Final = ("ConditionalCheckFailedException", "ValidationException")
# Of the states of a table, those in which items can be read and written.
USABLE: Final = ("ACTIVE", "UPDATING")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What freshq needs of a table.

    Attributes:
        table: Its name.
        key: Its key, as in CreateTable.
        definitions: The types of its and its indexes' key attributes, as in CreateTable.
        indexes: Its indexes, as in CreateTable.
        remedy: How to make an index.
    """

    table: str
    key: Iterable[Mapping[str, Any]]
    definitions: Iterable[Mapping[str, Any]]
    indexes: Iterable[Mapping[str, Any]]
    remedy: str


def unfit(description: Item, wanted: Wanted) -> Iterator[Finding]:
    """Compare the key and the indexes of a table with the wanted ones; yield each difference.

    Args:
        description: The answer of DescribeTable, as it came.
        wanted: What freshq needs.
    """
    own, needed = _types(description.get("AttributeDefinitions")), _types(wanted.definitions)
    found_key, key = (
        _key(schema, types) for schema, types in ((description.get("KeySchema"), own), (wanted.key, needed))
    )
    if _differ(found_key, key):
        text = f"the key of {wanted.table} is {_shown(found_key)}, not {_shown(key)}"
        yield Finding(Health.WRONG, "table", text, COPY)
    present = {index.get("IndexName"): index for index in description.get("GlobalSecondaryIndexes") or []}
    for index in wanted.indexes:
        name = index["IndexName"]
        if name not in present:
            yield Finding(Health.WRONG, "table", f"{wanted.table} has no index {name}", wanted.remedy)
            continue
        found_key, key = _key(present[name].get("KeySchema"), own), _key(index["KeySchema"], needed)
        where, anew = f"the index {name} of {wanted.table}", f"delete this index, then {wanted.remedy}"
        if _differ(found_key, key):
            yield Finding(
                Health.WRONG, "table", f"{where} has the key {_shown(found_key)}, not {_shown(key)}", anew
            )
            continue
        yield from _projection(present[name].get("Projection") or {}, index["Projection"], where, anew)


def _projection(found: Item, wanted: Item, where: str, anew: str) -> Iterator[Finding]:
    """Compare the attributes that an index holds beside its keys."""
    kind, needed = found.get("ProjectionType"), set(wanted.get("NonKeyAttributes") or [])
    if kind is None:
        return
    if kind == "ALL":
        text = f"{where} holds all attributes, so each write costs more"
        yield Finding(Health.WARNING, "table", text, anew)
        return
    held = found.get("NonKeyAttributes")
    if kind == "INCLUDE" and held is None:  # an implementation that does not tell
        return
    if missing := sorted(needed - set(held or [])):
        text = (
            f"{where} lacks the attributes {', '.join(missing)}"
            if missing[1:]
            else f"{where} lacks the attribute {missing[0]}"
        )
        yield Finding(Health.WRONG, "table", text, anew)


Key = dict[str, tuple[str, str | None]]


def _types(definitions: Iterable[Mapping[str, Any]] | None) -> dict[str, str]:
    return {
        each["AttributeName"]: each["AttributeType"]
        for each in definitions or []
        if each.get("AttributeName") and each.get("AttributeType")
    }


def _key(schema: Iterable[Mapping[str, Any]] | None, types: Mapping[str, str]) -> Key:
    """Return the attribute and its type of each part of a key, by HASH and RANGE; empty if it is not told."""
    return {
        each["KeyType"]: (each["AttributeName"], types.get(each["AttributeName"])) for each in schema or []
    }


def _differ(found: Key, wanted: Key) -> bool:
    """Return whether two keys differ, as far as the found one is told."""
    if not found:
        return False
    if {part: name for part, (name, _type) in found.items()} != {
        part: name for part, (name, _type) in wanted.items()
    }:
        return True
    return any(letter not in (None, wanted[part][1]) for part, (_name, letter) in found.items())


def _shown(key: Key) -> str:
    parts = (f"{name} ({letter})" if letter else name for name, letter in (key[part] for part in sorted(key)))
    return ", ".join(parts)


def stream(description: Item, table: str) -> Finding:
    """Compare the stream of a table with the one that the functions and the archive read."""
    found = description.get("StreamSpecification") or {}
    if not found.get("StreamEnabled"):
        text = f"{table} has no stream: no function sees new tasks, and the archive gets nothing"
        return Finding(Health.WRONG, "stream", text, f"enable it with the view {VIEW}, then deploy the stack")
    view = found.get("StreamViewType", VIEW)
    if view != VIEW:
        text = f"the stream of {table} has the view {view}, not {VIEW}"
        action = "disable it once no program reads it, enable it with that view, then deploy the stack"
        return Finding(Health.WRONG, "stream", text, action)
    return Finding(Health.OK, "stream", "it has old and new images")


def narrow_indexes(description: Item, wanted: Wanted) -> Iterator[Finding]:
    """Yield the indexes with much less capacity than their table."""
    names = [index["IndexName"] for index in wanted.indexes]
    for index in description.get("GlobalSecondaryIndexes") or []:
        if index.get("IndexName") not in names:
            continue
        for group, member in CAPACITIES:
            own, units = ((part.get(group) or {}).get(member) or 0 for part in (description, index))
            if 0 < units < LEAST_CAPACITY_RATIO * own:
                text = f"the index {index['IndexName']} may write {units} units a second, its table {own}"
                action = "a full index throttles the table: give it as many, or bill per request"
                yield Finding(Health.WARNING, "capacity", text, action)


def rights(client: DynamoDBClient, description: Item, wanted: Wanted) -> Iterator[Finding]:
    """Try each kind of call, changing nothing, and yield what the caller lacks, if the key is told."""
    key = _key(description.get("KeySchema"), _types(description.get("AttributeDefinitions")))
    types = {name: letter for name, letter in key.values() if letter is not None}
    if "HASH" not in key or len(types) < len(key) or not _is_usable(description.get("TableStatus")):
        return
    probes = _probes(client, wanted, _usable_indexes(description), types, key["HASH"][0])
    try:
        lacking = [f"dynamodb:{action}" for action, probe in probes if not _may(probe)]
    except ClientError as error:  # such as a throttled call, or a write while an index is made
        text = f"not tried, because a call failed: {error.response['Error'].get('Message', error)}"
        yield Finding(Health.UNKNOWN, "rights", text, "try again")
        return
    if lacking:
        text = f"the caller lacks {', '.join(lacking)}"
        yield Finding(Health.WARNING, "rights", text, "see docs/iam.md, Your own programs")
    else:
        yield Finding(Health.OK, "rights", "the caller may put, claim and settle")


def _is_usable(status: str | None) -> bool:
    return status in (None, *USABLE)


def _usable_indexes(description: Item) -> set[Any]:
    """Return the names of the indexes that answer queries: not those that are being filled."""
    indexes = description.get("GlobalSecondaryIndexes") or []
    return {index.get("IndexName") for index in indexes if _is_usable(index.get("IndexStatus"))}


def _probes(
    client: DynamoDBClient, wanted: Wanted, present: Container[str], types: Mapping[str, str], hash_name: str
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls by action: reads of no item, and writes on a condition that never holds."""

    def key(action: str = "GetItem") -> Item:
        values = {"S": PROBED.get(action, "freshq-doctor"), "N": "0", "B": b"freshq-doctor"}
        return {name: {letter: values[letter]} for name, letter in types.items()}

    table, names = wanted.table, {"#key": hash_name}
    never: Item = {
        "ConditionExpression": "attribute_exists(#key) AND attribute_not_exists(#key)",
        "ExpressionAttributeNames": names,
    }
    yield "GetItem", lambda: client.get_item(TableName=table, Key=key())
    yield "BatchGetItem", lambda: client.batch_get_item(RequestItems={table: {"Keys": [key()]}})
    needed = _types(wanted.definitions)
    for index in wanted.indexes:
        if index["IndexName"] not in present:
            continue
        attribute = next(part["AttributeName"] for part in index["KeySchema"] if part["KeyType"] == "HASH")
        arguments: Item = {
            "TableName": table,
            "IndexName": index["IndexName"],
            "KeyConditionExpression": "#key = :key",
            "ExpressionAttributeNames": {"#key": attribute},
            "ExpressionAttributeValues": {":key": {needed[attribute]: "freshq-doctor"}},
            "Limit": 1,
        }
        yield f"Query ({index['IndexName']})", lambda given=arguments: client.query(**given)  # type: ignore[misc]
    yield "PutItem", lambda: client.put_item(TableName=table, Item=key("PutItem"), **never)
    yield "UpdateItem", lambda: client.update_item(TableName=table, Key=key("UpdateItem"), **never)
    yield "DeleteItem", lambda: client.delete_item(TableName=table, Key=key("DeleteItem"), **never)


def _may(probe: Callable[[], Any]) -> bool:
    """Return whether a call was permitted.

    Raises:
        ClientError: If it failed for another reason, and was not understood either.
    """
    try:
        probe()
    except ClientError as error:
        code = error.response["Error"].get("Code")
        if code not in (*ACCESS_DENIED, *PERMITTED):
            raise
        return code in PERMITTED
    return True
