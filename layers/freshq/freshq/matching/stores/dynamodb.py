"""Resources and their entries on one DynamoDB table."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from freshq.errors import StoreError
from freshq.matching.callers import CallerStatus
from freshq.matching.resource import Resource
from freshq.matching.stores.base import ChangedError, MatchStore
from freshq.matching.stores.caller_items import (
    LINE_PARTITION,
    asking_key,
    asking_partition,
    caller_actions,
    caller_key,
    decode_caller,
    forgetting_actions,
)
from freshq.matching.stores.items import (
    COMBINATIONS_PARTITION,
    NAMES_KEY,
    RESOURCE_SHARDS,
    actions_of,
    decode_entry,
    decode_resource,
    encode_combination,
    entry_partition,
    resource_key,
    resource_partition,
)
from freshq.matching.stores.transactions import Transactions
from freshq.model.lifecycle import new_token
from freshq.stores.dynamodb.calls import ConditionFailed, check_table_name, default_client, translated
from freshq.stores.dynamodb.schema import WAITER_CONFIG
from freshq.stores.dynamodb.server_time import compared, server_time

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_dynamodb.type_defs import CreateTableInputTypeDef

    from freshq.matching.callers import Caller
    from freshq.matching.places import Place
    from freshq.matching.resource import Entry
    from freshq.matching.stores.base import Change, Span
    from freshq.stores.clocks import TimeRange
    from freshq.stores.dynamodb.names import Item

logger = logging.getLogger(__name__)

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
        self._added_combinations: frozenset[str] = frozenset()
        self._time = server_time(self._client)
        self._clock = compared(self.time_range)

    @override
    def clock(self) -> float:
        return self._clock()

    @override
    def time_range(self) -> TimeRange:
        return self._time.now(lambda: self._get(NAMES_KEY))

    @override
    def create_table(self) -> None:
        with translated(self._table):
            with suppress(self._client.exceptions.ResourceInUseException):
                self._client.create_table(**match_table_definition(self._table))
            self._client.get_waiter("table_exists").wait(TableName=self._table, WaiterConfig=WAITER_CONFIG)
            self._check_keys()

    def _check_keys(self) -> None:
        found = self._client.describe_table(TableName=self._table)["Table"].get("KeySchema", [])
        if {(key["AttributeName"], key["KeyType"]) for key in found} != set(KEYS):
            msg = f"table {self._table!r}: has other keys than pk and sk; choose another name"
            raise StoreError(msg)

    @override
    def delete_table(self) -> None:
        waiter = self._client.get_waiter("table_not_exists")
        with translated(self._table), suppress(self._client.exceptions.ResourceNotFoundException):
            self._check_keys()
            self._check_items()
            self._client.delete_table(TableName=self._table)
            waiter.wait(TableName=self._table, WaiterConfig=WAITER_CONFIG)

    def _check_items(self) -> None:
        """Check that the table has items of resources, or none: many tables have keys of these names."""
        if self._get(NAMES_KEY) is None and self._client.scan(TableName=self._table, Limit=1)["Items"]:
            msg = f"table {self._table!r}: has other items than resources; nothing was deleted"
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
    def add_combinations(self, combinations: Collection[str]) -> None:
        for combination in sorted(set(combinations) - self._added_combinations):
            item = encode_combination(combination)
            self._transactions.retried(partial(self._client.put_item, TableName=self._table, Item=item))
            self._added_combinations |= {combination}

    @override
    def combinations(self) -> Iterator[str]:
        arguments: Item = {
            "KeyConditionExpression": "pk = :pk",
            "ExpressionAttributeValues": {":pk": {"S": COMBINATIONS_PARTITION}},
        }
        yield from (item["combination"]["S"] for item in self._query(arguments))

    @override
    def count(self, place: Place, names: int, at_most: int | None) -> int:
        low, high = place.bounds
        arguments: Item = {
            "KeyConditionExpression": "pk = :pk AND sk BETWEEN :low AND :high",
            "FilterExpression": "size(attributes) = :names",
            "ExpressionAttributeValues": {
                ":pk": {"S": entry_partition(place.partition)},
                ":low": {"S": low},
                ":high": {"S": high},
                ":names": {"N": str(names)},
            },
            "Select": "COUNT",
        }
        found = 0
        for page in self._pages(arguments, at_most):
            found += page["Count"]
            if at_most is not None and found >= at_most:
                return at_most
        return found

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
    def commit(self, change: Change) -> None:
        actions = actions_of(self._table, change) + caller_actions(self._table, change)
        try:
            if len(actions) == 1:  # without entries: half the price of a transaction
                self._write_one(actions[0])
            else:
                next_version = change.after or change.caller_after
                self._transactions.write(actions, next_version.token if next_version else new_token())
        except ConditionFailed as failed:
            if not _made(failed.item, change):
                raise ChangedError from None
        self._forget_questions(change.caller_before)

    def _forget_questions(self, before: Caller | None) -> None:
        """Delete the items of the questions of a caller who no longer waits."""
        if before is None or before.status is not CallerStatus.WAITING:
            return
        try:
            for question in before.questions:
                self._forget_question(question, before.sort_key)
        except StoreError:
            # The change is made. Who finds one of them later deletes it.
            logger.warning("caller %r: questions are left in the table", before.caller_id, exc_info=True)

    def _forget_question(self, question: str, key: str) -> None:
        self._transactions.retried(
            lambda: self._client.delete_item(TableName=self._table, Key=asking_key(question, key))
        )

    @override
    def forget_line_key(self, question: str, key: str) -> None:
        with suppress(ConditionFailed):
            self._transactions.write(forgetting_actions(self._table, question, key), new_token())

    @override
    def caller(self, caller_id: str) -> Caller | None:
        item = self._get(caller_key(caller_id))
        return None if item is None else decode_caller(item)

    @override
    def waiting_callers(self, limit: int, start_after: str | None) -> list[Caller]:
        return [decode_caller(item) for item in self._items(LINE_PARTITION, limit, start_after)]

    @override
    def line_keys(self, question: str, limit: int, start_after: str | None) -> list[str]:
        items = self._items(asking_partition(question), limit, start_after)
        return [item["sk"]["S"] for item in items]

    def _items(self, partition: str, limit: int, start_after: str | None) -> Iterator[Item]:
        """Yield up to `limit` items of a partition in order, after a key."""
        pk: Item = {"S": partition}
        arguments: Item = {
            "KeyConditionExpression": "pk = :pk",
            "ExpressionAttributeValues": {":pk": pk},
        }
        if start_after is not None:
            arguments["ExclusiveStartKey"] = {"pk": pk, "sk": {"S": start_after}}
        return self._query(arguments, limit)

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
        for page in self._pages(arguments, limit):
            items = page["Items"] if left is None else page["Items"][:left]
            yield from items
            left = None if left is None else left - len(items)
            if left == 0:
                return

    def _pages(self, arguments: Item, limit: int | None) -> Iterator[Item]:
        """Yield the pages of a strongly consistent query, each of at most `limit` items."""
        if limit is not None:
            arguments = arguments | {"Limit": limit}
        while True:
            page = self._transactions.retried(
                partial(self._client.query, TableName=self._table, ConsistentRead=True, **arguments)
            )
            yield dict(page)
            if "LastEvaluatedKey" not in page:
                return
            arguments = arguments | {"ExclusiveStartKey": page["LastEvaluatedKey"]}


def _made(item: Item | None, change: Change) -> bool:
    """Return whether an earlier try of this change made the item whose condition failed, the first of it."""
    before, after = change.leading
    if after is None:
        return before is not None and item is None
    decode = decode_resource if isinstance(after, Resource) else decode_caller
    return item is not None and decode(item) == after
