"""Resources and queues on one DynamoDB table."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from freshq.errors import StoreError
from freshq.matching.stores.base import ChangedError
from freshq.matching.stores.items import (
    NAMES_KEY,
    RESOURCE_SHARDS,
    actions_of,
    decode_entry,
    decode_resource,
    line_partition,
    resource_key,
    resource_partition,
)
from freshq.matching.stores.transactions import Transactions
from freshq.stores.dynamodb.calls import TABLE_NAME, ConditionFailed, default_client, translated
from freshq.stores.dynamodb.schema import WAITER_CONFIG

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_dynamodb.type_defs import CreateTableInputTypeDef

    from freshq.matching.resource import Entry, Resource
    from freshq.matching.stores.base import Span
    from freshq.stores.dynamodb.names import Item

# A hash and a range key, as `match_items` uses them: no index, no counter.
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


class DynamoDBMatchStore:
    """Resources and their entries as items; every change of both is one transaction."""

    def __init__(self, table: str, client: DynamoDBClient | None = None) -> None:
        """Use a table.

        Args:
            table: Its name.
            client: A low-level boto3 client; None for one from the environment.

        Raises:
            ValueError: If it is not the name of a table.
        """
        if not isinstance(table, str) or not TABLE_NAME.fullmatch(table):
            msg = (
                f"table: must be the name of a DynamoDB table (3 to 255 of A-Z a-z 0-9 _ . -), got {table!r}"
            )
            raise ValueError(msg)
        with translated(table):
            self._client = client or default_client()
        self._table = table
        self._transactions = Transactions(self._client, table)
        # Names are never taken back, so one that was noted stays so.
        self._noted: frozenset[str] = frozenset()

    def create_table(self) -> None:
        """Make the table unless it is there; return once it can be used.

        Raises:
            StoreError: If there is a table of this name with other keys.
        """
        with translated(self._table):
            with suppress(self._client.exceptions.ResourceInUseException):
                self._client.create_table(**match_table_definition(self._table))
            self._client.get_waiter("table_exists").wait(TableName=self._table, WaiterConfig=WAITER_CONFIG)
            found = self._client.describe_table(TableName=self._table)["Table"].get("KeySchema", [])
        if {(key["AttributeName"], key["KeyType"]) for key in found} != set(KEYS):
            msg = f"table {self._table!r}: has other keys than pk and sk; choose another name"
            raise StoreError(msg)

    def add_names(self, names: Collection[str]) -> None:
        """Note the names of attributes; those that this process noted before cost nothing."""
        if not (new := set(names) - self._noted):
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
        self._noted |= new

    def last_name(self) -> str:
        """Return the greatest name ever noted."""
        item = self._get(NAMES_KEY)
        return max(item["attributeNames"]["SS"], default="") if item is not None else ""

    def get(self, resource_id: str) -> Resource | None:
        """Return a resource, strongly consistent."""
        item = self._get(resource_key(resource_id))
        return None if item is None else decode_resource(item)

    def _get(self, key: Item) -> Item | None:
        response = self._transactions.retried(
            lambda: self._client.get_item(TableName=self._table, Key=key, ConsistentRead=True)
        )
        return dict(response["Item"]) if "Item" in response else None

    def commit(self, before: Resource | None, after: Resource | None, last_name: str) -> None:
        """Replace one version of a resource, with its entries, by the next.

        Without entries it is a plain write, at half the price of a transaction of one.
        """
        actions = actions_of(self._table, before, after, last_name)
        if not actions:
            return
        try:
            if len(actions) == 1:
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

    def page(self, span: Span) -> list[Entry]:
        """Return entries in order, strongly consistent."""
        values: Item = {
            ":pk": {"S": line_partition(span.partition)},
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

    def resources(self) -> Iterator[Resource]:
        """Yield every resource, strongly consistent."""
        for shard in range(RESOURCE_SHARDS):
            arguments: Item = {
                "KeyConditionExpression": "pk = :pk",
                "ExpressionAttributeValues": {":pk": {"S": resource_partition(shard)}},
            }
            yield from map(decode_resource, self._query(arguments))

    def _query(self, arguments: Item, limit: int | None = None) -> Iterator[Item]:
        """Yield what a query finds, page by page, up to a limit."""
        left = limit
        while True:
            if left is not None:
                arguments = arguments | {"Limit": left}
            sent = arguments
            page = self._transactions.retried(
                lambda: self._client.query(TableName=self._table, ConsistentRead=True, **sent)  # noqa: B023
            )
            yield from map(dict, page["Items"])
            left = None if left is None else left - len(page["Items"])
            if "LastEvaluatedKey" not in page or left == 0:
                return
            arguments = arguments | {"ExclusiveStartKey": page["LastEvaluatedKey"]}


def _made(item: Item | None, before: Resource | None, after: Resource | None) -> bool:
    """Return whether the item that stands in the way is what this very write made of it before."""
    if after is None:
        return before is not None and item is None
    return item is not None and decode_resource(item) == after
