"""The store of tasks on a DynamoDB table: its parts, and the records and counts that processes share."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from freshq.model.fields import RESERVED_ID_PREFIX
from freshq.model.lifecycle import new_token
from freshq.stores.base import SharedRecord
from freshq.stores.dynamodb.agenda import DynamoAgenda
from freshq.stores.dynamodb.calls import (
    ConditionFailed,
    InvalidUpdate,
    TableCalls,
    check_table_name,
    default_client,
    translated,
)
from freshq.stores.dynamodb.items import condition, record_id, record_values
from freshq.stores.dynamodb.lines import DynamoLines
from freshq.stores.dynamodb.part import DynamoPart
from freshq.stores.dynamodb.schema import Names, create_table, key_prefix
from freshq.stores.dynamodb.tasks import DynamoTasks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.stores.base import Finding
    from freshq.stores.dynamodb.schema import Item

logger = logging.getLogger(__name__)
COUNTS_PREFIX: Final = f"{RESERVED_ID_PREFIX}counts#"
# Prefix of the attributes that hold counts.
COUNT: Final = "count_"
# The version of a record without one.
DAMAGED: Final = ""


class DynamoRecords(DynamoPart):
    """The shared records of a queue, and its counts."""

    @override
    def read_record(self, queue: str, name: str) -> SharedRecord | None:
        """Return a record, strongly consistent; None if there is none.

        A damaged one is empty, and the next write replaces it.
        """
        item = self.calls.get(record_id(queue, name))
        return None if item is None else SharedRecord(record_values(item), _version_of(item))

    @override
    def write_record(self, queue: str, name: str, values: Mapping[str, Any], version: str | None) -> bool:
        """Write a record if it still has this version; return whether it was written."""
        record = {
            "taskId": {"S": record_id(queue, name)},
            "values": {"S": json.dumps(values)},
            "requestToken": {"S": new_token()},
        }
        unchanged = condition("attribute_not_exists(#taskId)")
        if version == DAMAGED:
            unchanged = condition("NOT attribute_type(#requestToken, :string)", string={"S": "S"})
        elif version is not None:
            unchanged = condition("#requestToken = :seen", seen={"S": version})
        try:
            self.calls.put(record, unchanged)
        except ConditionFailed:
            return False
        return True

    @override
    def add_counts(self, queue: str, name: str, counts: Mapping[str, int], expires: int | None) -> None:
        """Add to the numbers of a record of counts; a damaged one is replaced."""
        record_id = f"{COUNTS_PREFIX}{queue}#{name}"
        values: Item = {f":{key}": {"N": str(value)} for key, value in counts.items()}
        values[":requestToken"] = {"S": new_token()}
        expression = "SET #requestToken = :requestToken"
        if expires is not None:
            expression += ", #ttl = :ttl"
            values[":ttl"] = {"N": str(expires)}
        arguments = {
            "Key": {"taskId": {"S": record_id}},
            "UpdateExpression": expression + " ADD " + ", ".join(f"#{COUNT}{key} :{key}" for key in counts),
            "ExpressionAttributeValues": values,
        }
        try:
            self.calls.update(arguments)
        except InvalidUpdate:
            logger.warning("%s was damaged and is replaced", record_id)
            self.calls.delete(record_id)
            self.calls.update(arguments)

    @override
    def read_counts(self, queue: str, name: str) -> dict[str, int]:
        """Return the numbers of a record of counts; empty if there is none."""
        item = self.calls.get(f"{COUNTS_PREFIX}{queue}#{name}") or {}
        return {
            key.removeprefix(COUNT): int(value["N"])
            for key, value in item.items()
            if key.startswith(COUNT) and value.get("N", "").lstrip("-").isdecimal()
        }


def _version_of(item: Item) -> str:
    """Return the version of a record; `DAMAGED` if it has none."""
    return str(item.get("requestToken", {}).get("S", DAMAGED))


class TableStore(DynamoTasks, DynamoLines, DynamoAgenda, DynamoRecords):
    """Tasks as items of a table; the claimable ones in a sparse index by creation time."""

    def __repr__(self) -> str:
        return f"dynamodb://{self.calls.table}"

    @property
    @override
    def shards(self) -> int:
        return self.keyspace.shards

    @override
    def use_shards(self, shards: int) -> None:
        self.keyspace.shards = shards

    @override
    def caller(self) -> str:
        from freshq.stores.dynamodb.table import identity

        return identity(self.calls.client) or super().caller()

    @override
    def erase(self, queue: str, task_ids: Collection[str], group: str | None) -> Iterator[Finding]:
        from freshq.stores.dynamodb.table import copies_of_table

        with translated(self.calls.table):
            yield from copies_of_table(self.calls.client, self.calls.table)

    @override
    def close(self) -> None:
        self.lease_records.close()


class DynamoDBStore(TableStore):
    """Tasks in a table of freshq's own."""

    def __init__(
        self,
        table: str,
        client: DynamoDBClient | None = None,
        *,
        shards: int | None = None,
        queue: str | None = None,
    ) -> None:
        """Use a table.

        Args:
            table: Its name.
            client: A low-level boto3 client; None for one from the environment.
            shards: Partitions of each line and of the due index; None: 1 until the stored number is read.
            queue: The queue of its tasks, because ids are unique only within a queue; None for tasks of any
                queue under their ids alone.

        Raises:
            ValueError: If the table name or the number of shards is wrong.
        """
        check_table_name(table)
        with translated(table):
            names = Names(key_prefix=key_prefix(queue))
            calls = TableCalls(client or default_client(), table, names)
        super().__init__(calls, 1 if shards is None else shards)
        self.named_shards = shards

    @override
    def of_queue(self, queue: str) -> DynamoDBStore:
        return type(self)(self.calls.table, self.calls.client, queue=queue)

    @override
    def create_table(self) -> None:
        with translated(self.calls.table):
            create_table(self.calls.client, self.calls.table)

    @override
    def examine(self) -> Iterator[Finding]:
        from freshq.stores.dynamodb.table import examine_table

        with translated(self.calls.table):
            yield from examine_table(self.calls.client, self.calls.table)
