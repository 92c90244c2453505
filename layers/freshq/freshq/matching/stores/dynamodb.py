"""Resources and their entries on one DynamoDB table."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from typing_extensions import override

from freshq.errors import StoreError
from freshq.matching.stores.base import ChangedError, MatchStore
from freshq.matching.stores.items import (
    NAMES_KEY,
    RESOURCE_SHARDS,
    actions_of,
    decode_entry,
    decode_resource,
    entry_partition,
    resource_key,
    resource_partition,
)
from freshq.matching.stores.transactions import Transactions
from freshq.stores.dynamodb.calls import ConditionFailed, check_table_name, default_client, translated
from freshq.stores.dynamodb.schema import WAITER_CONFIG

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_dynamodb.type_defs import CreateTableInputTypeDef

    from freshq.matching.resource import Entry, Resource
    from freshq.matching.stores.base import Span
    from freshq.stores.dynamodb.names import Item

KEYS: Final = (("pk", "HASH"), ("sk", "RANGE"))


def match_table_definition(table: str) -> CreateTableInputTypeDef:
    """Return the arguments of CreateTable.

    Args:
        table: Name of the table.
    """
    return {
        "TableName": table,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": "pk", "AttributeType": "S"},
            {"AttributeName": "sk", "AttributeType": "S"},
        ],
        "KeySchema": [
            {"AttributeName": "pk", "KeyType": "HASH"},
            {"AttributeName": "sk", "KeyType": "RANGE"},
        ],
        "SSESpecification": {"Enabled": True},
    }


class DynamoDBMatchStore(MatchStore):
    """Resources and their entries as items. Every change of both is one transaction."""

    def __init__(self, table: str, client: DynamoDBClient | None = None) -> None:
        """Use a table.

        Args:
            table: Its name.
            client: A low-level boto3 client; None for one from the environment.

        Raises:
            ValueError: If it is not the name of a table.
        """
        check_table_name(table)
        with translated(table):
            self._client = client or default_client()
        self._table = table
        self._transactions = Transactions(self._client, table)
        # Names are never deleted: those that this process added need not be added again.
        self._added: frozenset[str] = frozenset()

    @override
    def create_table(self) -> None:
        with translated(self._table):
            with suppress(self._client.exceptions.ResourceInUseException):
                self._client.create_table(**match_table_definition(self._table))
            self._client.get_waiter("table_exists").wait(TableName=self._table, WaiterConfig=WAITER_CONFIG)
            found = self._client.describe_table(TableName=self._table)["Table"].get("KeySchema", [])
        if {(key["AttributeName"], key["KeyType"]) for key in found} != set(KEYS):
            msg = f"table {self._table!r}: has other keys than pk and sk; choose another name"
            raise StoreError(msg)

    @override
    def add_names(self, names: Collection[str]) -> None:
        if not (new := set(names) - self._added):
            return
        values: Item = {":names": {"SS": sorted(new)}}
        self._transactions.retried(
            lambda: self._client.update_item(
                TableName=self._table,
                Key=NAMES_KEY,
                UpdateExpression="ADD attributeNames :names",
                ExpressionAttributeValues=values,
            )
        )
        self._added |= new

    @override
    def last_name(self) -> str:
        item = self._get(NAMES_KEY)
        return max(item["attributeNames"]["SS"], default="") if item is not None else ""

    @override
    def get(self, resource_id: str) -> Resource | None:
        item = self._get(resource_key(resource_id))
        return None if item is None else decode_resource(item)

    def _get(self, key: Item) -> Item | None:
        response = self._transactions.retried(
            lambda: self._client.get_item(TableName=self._table, Key=key, ConsistentRead=True)
        )
        return dict(response["Item"]) if "Item" in response else None

    @override
    def commit(self, before: Resource | None, after: Resource | None, last_name: str) -> None:
        actions = actions_of(self._table, before, after, last_name)
        if not actions:
            return
        try:
            if len(actions) == 1:  # without entries: half the price of a transaction
                self._write_one(actions[0])
            else:
                self._transactions.write(actions, uuid4().hex if after is None else after.token)
        except ConditionFailed as failed:
            if not _made(failed.item, before, after):
                raise ChangedError from None

    def _write_one(self, action: Any) -> None:  # noqa: ANN401 - arguments of the client
        if "Put" in action:
            self._transactions.retried(lambda: self._client.put_item(**action["Put"]))
        else:
            self._transactions.retried(lambda: self._client.delete_item(**action["Delete"]))

    @override
    def page(self, span: Span) -> list[Entry]:
        values: Item = {
            ":pk": {"S": entry_partition(span.partition)},
            ":low": {"S": span.low},
            ":high": {"S": span.high},
        }
        arguments: Item = {
            "KeyConditionExpression": "pk = :pk AND sk BETWEEN :low AND :high",
            "ExpressionAttributeValues": values,
            "ScanIndexForward": not span.newest_first,
        }
        if span.start_after is not None:
            arguments["ExclusiveStartKey"] = {"pk": values[":pk"], "sk": {"S": span.start_after}}
        return [decode_entry(item) for item in self._query(arguments, span.limit)]

    @override
    def resources(self) -> Iterator[Resource]:
        for shard in range(RESOURCE_SHARDS):
            arguments: Item = {
                "KeyConditionExpression": "pk = :pk",
                "ExpressionAttributeValues": {":pk": {"S": resource_partition(shard)}},
            }
            yield from map(decode_resource, self._query(arguments))

    def _query(self, arguments: Item, limit: int | None = None) -> Iterator[Item]:
        """Yield the items of a strongly consistent query, page by page, up to a limit."""
        left = limit
        while True:
            if left is not None:
                arguments = arguments | {"Limit": left}
            page = self._transactions.retried(
                partial(self._client.query, TableName=self._table, ConsistentRead=True, **arguments)
            )
            yield from map(dict, page["Items"])
            left = None if left is None else left - len(page["Items"])
            if "LastEvaluatedKey" not in page or left == 0:
                return
            arguments = arguments | {"ExclusiveStartKey": page["LastEvaluatedKey"]}


def _made(item: Item | None, before: Resource | None, after: Resource | None) -> bool:
    """Return whether an earlier try of this write made the item that fails its condition."""
    if after is None:
        return before is not None and item is None
    return item is not None and decode_resource(item) == after
