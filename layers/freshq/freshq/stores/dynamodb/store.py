"""The store on freshq's own DynamoDB table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from freshq.stores.base import ConflictError
from freshq.stores.dynamodb import queries
from freshq.stores.dynamodb.calls import (
    ConditionFailed,
    TableCalls,
    check_table_name,
    default_client,
    translated,
)
from freshq.stores.dynamodb.items import decode, decode_if_task, delete_condition, is_task
from freshq.stores.dynamodb.puts import Puts
from freshq.stores.dynamodb.schema import create_table
from freshq.stores.dynamodb.table_store import TableStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.errors import FreshqError
    from freshq.model.task import Task
    from freshq.stores.base import Guard
    from freshq.stores.conflicts import OnConflict, PutResult


class DynamoDBStore(TableStore):
    """Tasks as whole items of a table."""

    def __init__(self, table: str, client: DynamoDBClient | None = None, *, shards: int = 1) -> None:
        """Use a table.

        Args:
            table: Its name.
            client: A low-level boto3 client; None for one from the environment.
            shards: Partitions of each line and of the due index.

        Raises:
            ValueError: If the table name or the number of shards is wrong.
        """
        check_table_name(table)
        with translated(table):
            calls = TableCalls(client or default_client(), table)
        super().__init__(calls, shards)
        self._puts = Puts(calls, self._batches, self._keyspace)

    @override
    def create_table(self) -> None:
        with translated(self._calls.table):
            create_table(self._calls.client, self._calls.table)

    @override
    def insert(self, tasks: Sequence[Task]) -> list[bool | FreshqError]:
        return self._announced(tasks, self._puts.insert, self._puts.insert_many)

    @override
    def put_over(self, tasks: Sequence[Task], on_conflict: OnConflict) -> list[PutResult]:
        return self._announced(tasks, lambda task: self._puts.over(task, on_conflict))

    @override
    def get(self, task_id: str) -> Task | None:
        item = self._calls.get(task_id)
        return decode(item) if item is not None and is_task(item) else None

    @override
    def delete(self, task: Task, guard: Guard) -> None:
        try:
            self._calls.delete(task.task_id, delete_condition(task, guard))
        except ConditionFailed as failed:
            if failed.item is not None:
                raise ConflictError(decode_if_task(failed.item)) from None

    @override
    def purge(self, queue: str) -> int:
        ids = [item["taskId"]["S"] for item in queries.all_tasks(self._calls, queue)]
        self._calls.delete_many(ids)
        return len(ids)
