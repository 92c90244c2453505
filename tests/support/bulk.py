"""Backlogs for tests on DynamoDB, written with the calls of a bulk load: 25 tasks in each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from freshq.stores.dynamodb.items import encode
from freshq.stores.dynamodb.keyspace import Keyspace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from types_boto3_dynamodb import DynamoDBClient

    from freshq import Task

BATCH: Final = 25


def load(client: DynamoDBClient, table: str, tasks: Sequence[Task]) -> None:
    """Write tasks as they are, unguarded, into one shard."""
    for start in range(0, len(tasks), BATCH):
        batch = tasks[start : start + BATCH]
        requests: list[Any] = [{"PutRequest": {"Item": encode(task, Keyspace(1))}} for task in batch]
        client.batch_write_item(RequestItems={table: requests})
