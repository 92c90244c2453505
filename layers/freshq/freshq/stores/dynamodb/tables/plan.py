"""Plans the changes that make tables as a file describes them, and applies them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import TableMissing
from freshq.stores.dynamodb.calls import translated
from freshq.stores.dynamodb.tables.changes import TableChanges, index_names, is_on_demand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.stores.dynamodb.names import Item
    from freshq.stores.dynamodb.tables.description import Description, Table

UNITS: Final = ("ReadCapacityUnits", "WriteCapacityUnits")


@dataclass(frozen=True)
class TablePlan:
    """The changes to one table.

    Attributes:
        table: The table as described.
        create: Whether it does not exist.
        billing: The change of billing and capacity, if any.
        indexes: Global indexes to add.
        kept: Indexes that are not described; they stay.
    """

    table: Table
    create: bool = False
    billing: Item | None = None
    indexes: tuple[Item, ...] = ()
    kept: tuple[str, ...] = field(default=())

    @property
    def steps(self) -> list[str]:
        """The changes in words; empty if there is none."""
        name = self.table.table_name
        if self.create:
            indexes = ", ".join(index.index_name for index in self.table.indexes) or "none"
            billing = "on demand" if self.table.on_demand else "provisioned"
            return [f"create table {name} ({billing}), indexes: {indexes}"]
        steps = [] if self.billing is None else [f"change billing or capacity of table {name}"]
        return steps + [f"add index {index['IndexName']} to table {name}" for index in self.indexes]


def plan_tables(client: DynamoDBClient, description: Description) -> list[TablePlan]:
    """Return the changes to each table, without making them.

    Raises:
        ValueError: If a table exists with other keys, or with an index that cannot be changed.
        StoreError: If DynamoDB did not answer.
    """
    return [_plan(client, table, f"tables.{place}") for place, table in enumerate(description.tables)]


def apply_plans(
    client: DynamoDBClient,
    plans: Iterable[TablePlan],
    *,
    on_status: Callable[[str, str], None] | None = None,
    poll_seconds: float = 1.0,
) -> None:
    """Apply plans, one change at a time; safe to repeat.

    Args:
        client: A low-level boto3 client.
        plans: What `plan_tables` returned.
        on_status: Called at each poll with the resource that is waited for, and its status.
        poll_seconds: Time between polls.

    Raises:
        StoreError: If DynamoDB did not answer or refused; changes made so far stay.
    """
    for planned in plans:
        name = planned.table.table_name
        changes = TableChanges(client, name, poll_seconds=poll_seconds, on_status=on_status)
        definition: Any = planned.table.definition()
        if planned.create:
            with translated(name):
                client.create_table(**definition)
            changes.wait()
            continue
        if planned.billing is not None:
            changes.update(planned.billing)
        for index in planned.indexes:
            keys = {key["AttributeName"] for key in index["KeySchema"]}
            entries = [
                entry for entry in definition["AttributeDefinitions"] if entry["AttributeName"] in keys
            ]
            changes.add_index(index, entries)


def cloudformation_template(description: Description) -> Item:
    """Return a CloudFormation template of the tables. They outlive a deletion of the stack."""
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Resources": {
            table.logical_name: {
                "Type": "AWS::DynamoDB::Table",
                "DeletionPolicy": "Retain",
                "UpdateReplacePolicy": "Retain",
                "Properties": _properties(table),
            }
            for table in description.tables
        },
    }


def _properties(table: Table) -> Item:
    definition = table.definition()
    definition["SSESpecification"] = {"SSEEnabled": True}
    return definition


def _plan(client: DynamoDBClient, table: Table, path: str) -> TablePlan:
    try:
        found = TableChanges(client, table.table_name).description()
    except TableMissing:
        return TablePlan(table, create=True)
    definition = table.definition()
    _check_keys(found, definition, path)
    _check_indexes(found, definition, path)
    present = index_names(found)
    wanted = definition.get("GlobalSecondaryIndexes", [])
    return TablePlan(
        table,
        billing=_billing_change(found, definition),
        indexes=tuple(index for index in wanted if index["IndexName"] not in present),
        kept=tuple(sorted(present - {index["IndexName"] for index in wanted})),
    )


def _check_keys(found: Item, definition: Item, path: str) -> None:
    types = {entry["AttributeName"]: entry["AttributeType"] for entry in found["AttributeDefinitions"]}
    if found["KeySchema"] != definition["KeySchema"]:
        msg = f"{path}: table {definition['TableName']!r} has other keys: {_shown(found['KeySchema'])}"
        raise ValueError(msg + "; keys cannot change")
    for entry in definition["AttributeDefinitions"]:
        name, letter = entry["AttributeName"], entry["AttributeType"]
        if types.get(name, letter) != letter:
            msg = f"{path}: {name!r} of table {definition['TableName']!r} is of type {types[name]}"
            raise ValueError(msg + f", not {letter}; that cannot change")


def _check_indexes(found: Item, definition: Item, path: str) -> None:
    """Reject changes that need a new index."""
    for member in ("GlobalSecondaryIndexes", "LocalSecondaryIndexes"):
        present = {index["IndexName"]: index for index in found.get(member) or []}
        for index in definition.get(member, []):
            known = present.get(index["IndexName"])
            where = f"{path}: index {index['IndexName']!r}"
            if known is None and member == "LocalSecondaryIndexes":
                raise ValueError(where + ": a local index can only be created with its table")
            if known is not None and _fixed(known) != _fixed(index):
                msg = f"{where}: has keys {_shown(known['KeySchema'])} and another projection or keys;"
                raise ValueError(msg + " delete it, or give the new one another name")


def _fixed(index: Item) -> tuple[Any, Any, list[str]]:
    projection = index["Projection"]
    return index["KeySchema"], projection["ProjectionType"], sorted(projection.get("NonKeyAttributes", []))


def _shown(schema: Iterable[Item]) -> str:
    return ", ".join(f"{key['AttributeName']} ({key['KeyType']})" for key in schema)


def _billing_change(found: Item, definition: Item) -> Item | None:
    """Return the arguments of UpdateTable for billing and capacity; None if they are as described."""
    if definition["BillingMode"] == "PAY_PER_REQUEST":
        return None if is_on_demand(found) else {"BillingMode": "PAY_PER_REQUEST"}
    change: Item = {}
    if _capacity_differs(found, found, definition):
        change = {
            "BillingMode": "PROVISIONED",
            "ProvisionedThroughput": definition["ProvisionedThroughput"],
        }
    if updates := _index_updates(found, definition):
        change["GlobalSecondaryIndexUpdates"] = updates
    return change or None


def _index_updates(found: Item, definition: Item) -> list[Item]:
    present = {index["IndexName"]: index for index in found.get("GlobalSecondaryIndexes") or []}
    names = ("IndexName", "ProvisionedThroughput")
    return [
        {"Update": {name: index[name] for name in names}}
        for index in definition.get("GlobalSecondaryIndexes", [])
        if index["IndexName"] in present and _capacity_differs(found, present[index["IndexName"]], index)
    ]


def _capacity_differs(table: Item, found: Item, definition: Item) -> bool:
    """Return whether a part of a table, or the table itself, has another provisioned capacity."""
    return is_on_demand(table) or _units(found) != _units(definition)


def _units(part: Item) -> list[int]:
    return [part.get("ProvisionedThroughput", {}).get(name, 0) for name in UNITS]
